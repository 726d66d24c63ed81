#!/usr/bin/env bash
# hosts_test.sh - ranks on two hosts: network namespaces with names and addresses of their own and a
# cable between them, which mpirun enters through an agent in place of ssh. Lines between ranks are
# TCP, and what ranks on the other host tell their launcher comes through mpirun. Needs root.
# INFINIC_LONG=1: all ways to fail; else a sample.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
PATH=$PATH:/usr/sbin:/sbin
ranks=$BUILD/tests/mpi/ranks
[ -x "$ranks" ] || { echo "skipped: built without MPI (Debian's libopenmpi-dev)"; exit 77; }
for tool in mpirun ip nsenter unshare; do
    command -v "$tool" > /dev/null || { echo "skipped: no $tool"; exit 77; }
done
mpirun --version 2> /dev/null | grep -q 'Open MPI' || { echo "skipped: mpirun is not Open MPI's"; exit 77; }
a=infinic_a_$$ b=infinic_b_$$
take_down() {
    local space process
    for space in "$a" "$b"; do
        for process in $(ip netns pids "$space" 2> /dev/null); do kill -9 "$process"; done
        ip netns del "$space" 2> /dev/null
    done
    rm -rf "$work"
}
trap take_down EXIT
# The second interface leads nowhere: a rank must not wait for that address.
if ! { ip netns add "$a" && ip netns add "$b" &&
    ip link add nowhere netns "$a" type veth peer name nowhere netns "$b" &&
    ip -n "$a" addr add 10.78.0.1/24 dev nowhere && ip -n "$a" link set nowhere up &&
    ip link add cable netns "$a" type veth peer name cable netns "$b" &&
    ip -n "$a" addr add 10.77.0.1/24 dev cable && ip -n "$b" addr add 10.77.0.2/24 dev cable &&
    ip -n "$a" link set lo up && ip -n "$b" link set lo up &&
    ip -n "$a" link set cable up && ip -n "$b" link set cable up && unshare -u true; } 2> "$work/why"; then
    echo "skipped: no network namespaces here: $(tail -n 1 "$work/why")"
    exit 77
fi
cat > "$work/agent" << AGENT
#!/bin/sh
host=\$1
shift
[ "\$host" = alpha ] && space=$a || space=$b
exec nsenter --net=/run/netns/\$space unshare -u sh -c 'hostname "\$1"; shift; exec sh -c "\$*"' sh "\$host" "\$@"
AGENT
chmod +x "$work/agent"
printf 'alpha slots=2\nbeta slots=2\n' > "$work/both"
printf 'beta slots=4\n' > "$work/other"
export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_orte_default_hostfile=$work/both OMPI_MCA_pml=ob1
export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24

on_alpha() { nsenter "--net=/run/netns/$a" unshare -u sh -c 'hostname alpha; exec "$@"' sh "$@"; }

# once CODE TEXT COMMAND...: on alpha; exit code CODE, and TEXT in the only error that is said.
once() {
    local code=$1 text=$2 log
    shift 2
    log=$(mktemp "$work/once.XXXXXX")
    exits "$code" on_alpha timeout -k 5 60 "$@" > "$log" 2>&1 && grep -q -F -- "$text" "$log" &&
        [ "$(grep -c -E "error|ERROR|-----|mpirun" "$log")" = 1 ] && return 0
    cat "$log"
    echo "expected exit code $code, and once: $text"
    return 1
}

# signalled COMMAND SECONDS CODE TEXT: the command runs, with $launcher and $pids/RANK, while four
# ranks loop; all ranks are out in time.
signalled() {
    local pids launcher got from left i
    pids=$(mktemp -d "$work/pids.XXXXXX")
    RANKS_PIDS=$pids nsenter "--net=/run/netns/$a" unshare -u sh -c 'hostname alpha; exec "$@"' sh \
        "$ranks" loop 60000 > "$pids.log" 2>&1 &
    launcher=$!
    for i in $(seq 600); do
        [ "$(ls "$pids" | wc -l)" = 4 ] && break
        sleep 0.05
    done
    sleep 0.3
    from=$(date +%s)
    eval "$1"
    for i in $(seq "$(($2 * 10))"); do
        left=$(for process in $(cat "$pids"/*); do kill -0 "$process" 2> /dev/null && echo "$process"; done)
        [ -n "$left" ] || break
        sleep 0.1
    done
    wait "$launcher"
    got=$?
    cat "$pids.log"
    [ -z "$left" ] || { echo "still there after $2 s: $left"; return 1; }
    [ "$got" = "$3" ] && grep -q -E -- "$4" "$pids.log" && return 0
    echo "exit code $got, expected $3: $4"
    return 1
}

losses_equal() {
    local small=(models/gpt2.it -D vocab=256 -D n_layer=4 -D n_head=2 -D n_embd=32 -D ctx=32 -D train.T=32 -D train.B=2
        -D train.microbatches=4 -D train.dtype=f32 --target=cpu)
    "$INFINIC" tokenize README.md -o "$work/tokens.bin" && "$INFINIC" "${small[@]}" -o "$work/one" &&
        "$INFINIC" "${small[@]}" -D parallel.pp=4 -o "$work/four" || return 1
    "$work/one" train --data "$work/tokens.bin" --quiet --steps 12 --metrics "$work/one.jsonl" &&
        on_alpha "$work/four" train --data "$work/tokens.bin" --quiet --steps 12 --metrics "$work/four.jsonl" &&
        cmp <(losses "$work/one.jsonl") <(losses "$work/four.jsonl")
}

check "four ranks on two hosts: messages" says 'messages are right' on_alpha "$ranks" messages 1
check "a rank of the other host is killed" signalled 'kill -9 $(cat $pids/3)' 10 7 '^toy: error: rank 3 \(process .*\) died at step'
export OMPI_MCA_orte_default_hostfile=$work/other
check "all on the other host: SIGINT goes there through mpirun" signalled 'kill -INT $launcher' 10 75 \
    'toy: error: stopped by SIGUSR1, all together'
[ -n "${INFINIC_LONG-}" ] || finish
check "all on the other host: it ends well" says '0 of 4, 4 here' on_alpha "$ranks" say
check "one of them gives up" once 4 'toy: rank 1: error: rank 1 gives up' "$ranks" fail 1 4
check "one of them is killed" signalled 'kill -9 $(cat $pids/2)' 10 7 'rank 2 \(process .*\) died at step'
export OMPI_MCA_orte_default_hostfile=$work/both
check "on two hosts: the losses of one rank" losses_equal
check "a rank of the other host gives up" once 6 'toy: rank 3: error: rank 3 gives up' "$ranks" fail 3 6
check "a rank of this host gives up" once 5 'toy: rank 1: error: rank 1 gives up' "$ranks" fail 1 5
check "a rank ends without a word" once 7 'rank 3 (process' "$ranks" vanish 3
check "rank 0 is killed" signalled 'kill -9 $(cat $pids/0)' 10 7 'rank 0 \(process .*\) died at step'
check "SIGTERM, agreed upon" signalled 'kill -TERM $launcher' 10 75 'toy: error: stopped by SIGTERM, all together'
check "a stopped rank" signalled 'kill -STOP $(cat $pids/3)' 15 7 'rank 3 \(process .*\) has not answered for 8 s'
check "a cut cable: a silent host" signalled 'ip -n $b link set cable down' 12 7 \
    'rank [23] \(process .*\) has not answered for 8 s: it is stopped, or its host is gone'
finish
