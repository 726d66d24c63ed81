#!/usr/bin/env bash
# ranks_test.sh - processes under MPI: how they start, talk, fail, die and end, with a program that
# has no model (ranks/ranks.c). INFINIC_LONG=1: 50 killed ranks, and messages beyond 2^31 bytes.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
ranks=$BUILD/tests/mpi/ranks
shim=$BUILD/tests/mpi/libslow_mpi.so watch=$BUILD/tests/mpi/libcheck_mpi.so
[ -x "$ranks" ] || { echo "skipped: built without MPI (Debian's libopenmpi-dev)"; exit 77; }
command -v mpirun > /dev/null || { echo "skipped: no mpirun (Debian's openmpi-bin)"; exit 77; }
export TMPDIR=$work/tmp    # has to be empty at the end
mkdir "$TMPDIR"
export MALLOC_PERTURB_=90
as_root=()
[ "$(id -u)" = 0 ] && as_root=(--allow-run-as-root)
by_hand=(mpirun "${as_root[@]}" --oversubscribe --bind-to none)

# once CODE TEXT COMMAND...: exit code CODE, and TEXT in the only "error" of all that is said.
once() {
    local code=$1 text=$2 log
    shift 2
    log=$(mktemp "$work/once.XXXXXX")
    exits "$code" "$@" > "$log" 2>&1 && grep -q -F -- "$text" "$log" &&
        [ "$(grep -c -E "${once_counts-error|ERROR|-----}" "$log")" = 1 ] && return 0
    cat "$log"
    echo "expected exit code $code, and once: $text"
    return 1
}

# misused "WHAT:TEXT"...: what watches MPI sees each, all at once.
misused() {
    local one pids=() failed=0
    for one in "$@"; do
        exits 7 env RANKS=2 LD_PRELOAD="$watch" "$ranks" misuse "${one%%:*}" > "$work/misused.${one%%:*}" 2>&1 &
        pids+=($!)
    done
    for one in "$@"; do
        wait "${pids[0]}" && grep -q -E "^check_mpi: rank [01]: .*${one#*:}" "$work/misused.${one%%:*}" ||
            { echo "not seen: $one"; cat "$work/misused.${one%%:*}"; failed=1; }
        pids=("${pids[@]:1}")
    done
    return $failed
}

# started DIR PID: waits until all four ranks have their place.
started() {
    local i
    for i in $(seq 400); do
        [ "$(ls "$1" | wc -l)" = 4 ] && return 0
        kill -0 "$2" 2> /dev/null || return 1
        sleep 0.05
    done
    return 1
}

# all_gone DIR SECONDS: none of the ranks is there any more.
all_gone() {
    local i
    for i in $(seq $(($2 * 20))); do
        kill -0 $(cat "$1"/*) 2> /dev/null || return 0
        sleep 0.05
    done
    echo "still there: $(ps -o pid=,stat=,args= -p "$(cat "$1"/* | paste -sd,)")"
    return 1
}

# signalled SIGNAL RANK SECONDS CODE TEXT [COMMAND...]: a signal to one rank of a running loop, at a
# random moment; everyone is out in time, the exit code is CODE and TEXT is said.
signalled() {
    local signal=$1 rank=$2 limit=$3 code=$4 text=$5 dir pid got from
    shift 5
    dir=$(mktemp -d "$work/pids.XXXXXX")
    RANKS_PIDS=$dir "$@" "$ranks" loop 60000 > "$dir.log" 2>&1 &
    pid=$!
    started "$dir" "$pid" || { cat "$dir.log"; return 1; }
    sleep "0.$((RANDOM % 6))$((RANDOM % 10))"
    from=$(date +%s)
    kill "-$signal" "$(cat "$dir/$rank")"
    wait "$pid"
    got=$?
    [ $(($(date +%s) - from)) -le "$limit" ] || { echo "took $(($(date +%s) - from)) s"; return 1; }
    all_gone "$dir" 2 || return 1
    grep -q -E -- "$text" "$dir.log" || { cat "$dir.log"; echo "does not say: $text"; return 1; }
    [[ $got =~ ^$code$ ]] || { cat "$dir.log"; echo "exit code $got, expected $code"; return 1; }
}

# A rank is killed at any moment from the first one of the start on.
killed_early() {
    local dir pid got victim i
    dir=$(mktemp -d "$work/pids.XXXXXX")
    RANKS_PIDS=$dir "$ranks" loop 60000 > "$dir.log" 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 7))$((RANDOM % 10))"
    for i in $(seq 100); do
        victim=$(pgrep -f "^$ranks loop 60000" | grep -v "^$pid\$" | shuf -n 1)
        [ -n "$victim" ] && break
        sleep 0.02
    done
    kill -9 "$victim"
    wait "$pid"
    got=$?
    grep -q -E "rank [0-3] ((\(process $victim\) )?died|of 4 has not started)" "$dir.log" && [ "$got" = 7 ] && return 0
    cat "$dir.log"
    echo "exit code $got"
    return 1
}

# to_launcher SIGNAL MODE CODE TEXT: a signal to the launcher goes to the ranks.
to_launcher() {
    local dir pid got signal
    dir=$(mktemp -d "$work/pids.XXXXXX")
    RANKS_PIDS=$dir setsid "$ranks" "$2" > "$dir.log" 2>&1 &
    pid=$!
    started "$dir" "$pid" || { cat "$dir.log"; return 1; }
    for signal in $1; do
        sleep 0.3
        kill "-$signal" "$pid"
    done
    wait "$pid"
    got=$?
    all_gone "$dir" 10 || return 1
    [ "$got" = "$3" ] && grep -q -F -- "$4" "$dir.log" && return 0
    cat "$dir.log"
    echo "exit code $got, expected $3: $4"
    return 1
}

# Shared memory that is there now, or that a process uses (of another test), is not ours.
shared_before=$(ls /dev/shm 2> /dev/null | grep vader)
nothing_shared() {
    local try name left
    for try in 1 2 3 4 5; do
        left=
        for name in $(ls /dev/shm 2> /dev/null | grep vader | grep -v -x -F -e "${shared_before:-none}"); do
            grep -q -s -F "/dev/shm/$name" /proc/[0-9]*/maps || left+=" $name"
        done
        [ -n "$left" ] || return 0
        sleep 1
    done
    echo "left:$left"
    return 1
}
export OMPI_MCA_pml=ob1    # no look for networks: a third of each start
# The ranks notice that mpirun is gone, and what it leaves is removed.
mpirun_killed() {
    local dir pid got
    dir=$(mktemp -d "$work/pids.XXXXXX")
    RANKS_PIDS=$dir "$ranks" loop 60000 > "$dir.log" 2>&1 &
    pid=$!
    started "$dir" "$pid" || { cat "$dir.log"; return 1; }
    kill -9 "$(pgrep -P "$pid")"
    wait "$pid"
    got=$?
    all_gone "$dir" 10 || return 1
    [ "$got" = 7 ] && grep -q -E 'mpirun (ended before|was ended by)' "$dir.log" && return 0
    cat "$dir.log"
    echo "exit code $got"
    return 1
}

# What takes ten seconds runs beside the rest.
signalled STOP 1 12 7 'rank 1 .* has not answered for 8 s.* last seen at step' > "$work/stop.log" 2>&1 &
stop=$!
(RANKS_LATE=2 once 7 'rank 2 of 4 has not started within 10 s' "$ranks" say) > "$work/late.log" 2>&1 &
late=$!

check "arguments arrive as they are" says '4 here, 3 threads: [a b] [] [$x;"] [--x=:] [-1]' \
    env OMP_NUM_THREADS=3 "$ranks" say 'a b' '' '$x;"' --x : -1
check "by hand under mpirun, a share of the processors" \
    says "0 of 4, 4 here, $((($(nproc) + 3) / 4)) threads" env -u OMP_NUM_THREADS "${by_hand[@]}" -n 4 "$ranks" say
check "messages, four ranks" says 'messages are right' "$ranks" messages 1
check "messages, two ranks, lifelines by TCP" says 'messages are right' \
    env RANKS=2 INFINIC_LIFELINE=tcp "$ranks" messages 3
if ldd "$ranks" | grep -q libasan; then
    echo "no shim can be loaded before a sanitizer: slow MPI is left to the release build"
    watch=
    misuses=('small:MPI_Irecv: byte 100000 of 100001 is not there')
else
    misuses=()
    check "messages, watched" says 'messages are right' env LD_PRELOAD="$watch" "$ranks" messages 5
    check "messages, slow MPI" says 'messages are right' env LD_PRELOAD="$shim" "$ranks" messages 4
fi
misuses+=('sizes:collective [0-9]+: broadcast of [0-9]+ bytes from 0; rank'
    'changed:MPI_Isend of 100000 bytes: they have changed' 'shared:MPI_Irecv of 2 bytes at .* overlap'
    'left:1 requests are left, the first: MPI_Irecv of 100000')
check "misuse of MPI is seen" misused "${misuses[@]}"
# sums RANKS DP: twice, the same bits.
sums() {
    local k
    for k in 1 2; do
        env RANKS="$1" RANKS_DP="$2" "$ranks" sums > "$work/sums.$k" || { cat "$work/sums.$k"; return 1; }
    done
    cat "$work/sums.1" && grep -q 'sums are right' "$work/sums.1" && cmp "$work/sums.1" "$work/sums.2"
}
for dp in 2 3 ${INFINIC_LONG:+4 5 6 7 8}; do
    check "sums over $dp replicas: the same bits on all, and again" sums "$dp" "$dp"
done
check "sums over 2 replicas of 2 ranks" sums 4 2
once_counts='^toy:'   # mpirun has its own remarks
check "a wrong number of ranks" once 2 'has 4 ranks (dp 1, tp 1, pp 4) and was started as 2' \
    "${by_hand[@]}" -n 2 "$ranks" say
check "one rank is started as two" once 2 'has 1 rank (dp 1, tp 1, pp 1) and was started as 2' \
    env RANKS=1 "${by_hand[@]}" -n 2 "$ranks" say
check "a rank gives up, by hand" once 4 'toy: rank 1: error: rank 1 gives up' \
    "${by_hand[@]}" -n 4 "$ranks" fail 1 4
unset once_counts
check "no mpirun" once 5 'apt-get install openmpi-bin' env PATH=/nowhere "$ranks" say
check "a rank gives up" once 6 'toy: rank 2: error: rank 2 gives up' "$ranks" fail 2 6
check "all give up" once 6 'gives up' "$ranks" fail -1 6
check "other data" once 7 'the data of rank 0 differs' "$ranks" hash data 0
check "a broken invariant" once 3 'internal error' "$ranks" panic 1
check "a replica ends without a word" once 7 'rank 3 = replica 1 of pipeline rank 1 (process' env RANKS_DP=2 "$ranks" vanish 3
check "a rank ends without a word" once 7 'died at step 5, in task 3 of 3: update' "$ranks" vanish 2
check "a full disk" once 5 'standard output could not be written' sh -c "'$ranks' write 100000 > /dev/full"
check "much output arrives" exits 0 sh -c "[ \$('$ranks' write 3000000 | wc -c) = 3000000 ]"
for signal in INT ${INFINIC_LONG:+TERM USR1}; do
    check "SIG$signal, agreed upon" to_launcher "$signal" loop 75 "stopped by SIG$signal, all together"
done
check "SIGTERM in the data" to_launcher TERM data 75 'stopped by a signal in the data'
check "SIGINT twice" to_launcher 'INT INT' data 75 started
check "the launcher is killed" to_launcher KILL loop 137 started
check "mpirun is killed" mpirun_killed
kills=2
[ -z "${INFINIC_LONG-}" ] || kills=48
for rank in 0 3 $(for i in $(seq "$kills"); do echo $((RANDOM % 4)); done); do
    check "rank $rank is killed" signalled KILL "$rank" 10 7 "rank $rank \(process .*\) died at step [0-9]+, in task"
done
check "rank 2 is killed, by hand" signalled KILL 2 10 '(7|137)' 'rank 2 .* died at step' "${by_hand[@]}" -n 4
check "rank 0 is killed, TCP" signalled KILL 0 10 7 'rank 0 .* died' env INFINIC_LIFELINE=tcp
wait "$stop"
check "a stopped rank" sh -c "cat '$work/stop.log'; exit $?"
wait "$late"
check "a rank that never comes" sh -c "cat '$work/late.log'; exit $?"
for i in $(seq $((kills / 4 + 1))); do check "a rank is killed during the start" killed_early; done
if [ -n "${INFINIC_LONG-}" ] && [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -ge 8 ]; then
    check "messages of more than 2^31 bytes" says 'large messages are right' "$ranks" large
fi
check "nothing is left in the folder for temporary files" sh -c "! find '$TMPDIR' -mindepth 1 | grep ."
check "nothing is left in shared memory" nothing_shared
finish
