#!/usr/bin/env bash
# ranks_test.sh - a program of four ranks from the command line: the bits of one rank, slow or fast;
# stopped and resumed; killed; and what it says when something is wrong.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
command -v mpirun > /dev/null || { echo "skipped: no mpirun (Debian's openmpi-bin)"; exit 77; }
shim=$BUILD/tests/mpi/libslow_mpi.so
"$INFINIC" tokenize README.md -o "$work/tokens.bin" > /dev/null || exit 1
head -c 3000 README.md > "$work/other.txt"
"$INFINIC" tokenize "$work/other.txt" -o "$work/other.bin" > /dev/null || exit 1

small=(-D vocab=256 -D n_layer=4 -D n_head=2 -D n_embd=32 -D ctx=32 -D train.T=32 -D train.B=2 -D train.microbatches=4
    -D train.dtype=f32 -D train.schedule=constant)
check "a model for one rank" compile models/gpt2.it "$work/one" "${small[@]}"
if ! compile models/gpt2.it "$work/four" "${small[@]}" -D parallel.pp=4 > "$work/compile.log" 2>&1; then
    grep -q -i "mpi" "$work/compile.log" && { echo "skipped: built without MPI"; exit 77; }
    cat "$work/compile.log"
    exit 1
fi
by_hand=(mpirun --oversubscribe --bind-to none)
[ "$(id -u)" != 0 ] || by_hand+=(--allow-run-as-root)
export OMPI_MCA_pml=ob1    # no look for networks: a third of each start
data=(--data "$work/tokens.bin" --quiet)

check "a program of one rank has no MPI in it" sh -c "! ldd '$work/one' | grep -i mpi"
check "one rank trains" "$work/one" train "${data[@]}" --steps 12 --metrics "$work/one.jsonl" --out "$work/run1"
check "four ranks train" "$work/four" train "${data[@]}" --steps 12 --metrics "$work/four.jsonl" --out "$work/run4"
check "with the same losses" cmp <(losses "$work/one.jsonl") <(losses "$work/four.jsonl")
check "and the same weights" cmp "$work/run1/model.safetensors" "$work/run4/model.safetensors"
check "also when MPI is slow at random" env LD_PRELOAD="$shim" SLOW_SEED=$RANDOM "$work/four" train "${data[@]}" \
    --steps 12 --metrics "$work/slow.jsonl"
check "losses of the slow run" cmp <(losses "$work/one.jsonl") <(losses "$work/slow.jsonl")

# What else a program of several ranks does, and what it does not.
"$work/one" train "${data[@]}" --steps 1 --no-shuffle --dump-grads "$work/grads.st" > /dev/null 2>&1
of_data=(--data "$work/tokens.bin")
check "verify compares the tensors of all ranks" says '52 tensors agree' "$work/four" verify "${of_data[@]}" --ref "$work/grads.st"
check "also by hand" says '52 tensors agree' "${by_hand[@]}" -n 4 "$work/four" verify "${of_data[@]}" --ref "$work/grads.st"
check "and names the first that differs" says "'transformer.h.0.attn.c_attn.bias' is the first that differs" \
    exits 4 "$work/four" verify "${of_data[@]}" --seed 9 --ref "$work/grads.st"
check "eval" cmp <("$work/one" eval "${of_data[@]}" --weights "$work/run1") <("$work/four" eval "${of_data[@]}" --weights "$work/run4")
check "bench" says '"bubble"' "$work/four" bench --steps 2 --json

# stop SIGNAL: sent to the launcher in the middle of a run; all is saved, exit code 75.
stop() {
    local pid got
    "$work/four" train "${data[@]}" --steps 100000 --metrics "$work/stop.jsonl" --out "$work/stopped" \
        > "$work/stop.log" 2>&1 &
    pid=$!
    until [ "$(losses "$work/stop.jsonl" 2> /dev/null | wc -l)" -ge 5 ]; do
        kill -0 "$pid" || { cat "$work/stop.log"; return 1; }
        sleep 0.05
    done
    kill "-$1" "$pid"
    wait "$pid"
    got=$?
    cat "$work/stop.log"
    [ "$got" = 75 ] && grep -q "error: stopped by SIG$1 after step" "$work/stop.log"
}
resume() {
    local steps
    steps=$(($(sed 's/.*step-0*//' "$work/stopped/latest") + 7))
    "$work/four" train "${data[@]}" --steps $steps --out "$work/stopped" --resume || return 1
    "$work/one" train "${data[@]}" --steps $steps --out "$work/never" || return 1
    cmp "$work/stopped/model.safetensors" "$work/never/model.safetensors"
}
check "SIGINT: stopped and saved" stop INT
check "resumed: the weights of a run that was never stopped" resume

told_where() {
    killed_rank "$work/four" "${of_data[@]}" &&
        grep -E 'gpt2: error: rank [0-3] \(process [0-9]+\) died at step [0-9]+, in task [0-9]+ of [0-9]+: ' "$work/killed.log"
}
check "a killed rank is named, and where it was" told_where

# once CODE TEXT COMMAND...: TEXT is said once, by one of the ranks.
once() {
    local code=$1 text=$2
    shift 2
    exits "$code" "$@" > "$work/once.log" 2>&1 && [ "$(grep -c -E -- "$text" "$work/once.log")" = 1 ] && return 0
    cat "$work/once.log"
    return 1
}
check "no such data" once 4 'error: .*absent.bin: there is no such file' "$work/four" train --data "$work/absent.bin"
check "numbers that are not finite" once 6 'error: step .* is NaN|error: step .* is inf' \
    "$work/four" train "${data[@]}" --lr 1e30 --steps 50
check "an unknown flag" once 2 "unknown option '--foo'" "$work/four" train --foo
check "no mpirun" once 5 'there is no mpirun on the PATH' env PATH=/nowhere "$work/four" train "${data[@]}"
in_one_piece='hint: compile it in one piece, infinic gpt2.it -D parallel.pp=1 -D parallel.vpp=1 '
check "generate" once 2 "$in_one_piece" "$work/four" generate --prompt-ids 1,2
check "by hand" once 2 "$in_one_piece" "${by_hand[@]}" -n 4 "$work/four" generate --prompt-ids 1,2
check "verify without a reference" once 2 '^gpt2: error: verify needs --ref FILE' "$work/four" verify
check "no such reference" once 4 'absent.st' "$work/four" verify --ref "$work/absent.st"
check "info runs in one process" once 0 '^layout: ' "$work/four" info
check "also by hand" once 0 '^layout: ' "${by_hand[@]}" -n 4 "$work/four" info
check "one rank is started as four" once 2 'has 1 rank .* and was started as 4' \
    "${by_hand[@]}" -n 4 "$work/one" train "${data[@]}"
# Ranks 1 and 2 read no samples.
check "other data on one of the hosts" once 7 'the data of rank 3 differs' "${by_hand[@]}" -n 4 \
    sh -c "[ \$OMPI_COMM_WORLD_RANK != 3 ] || exec '$work/four' train --quiet --steps 2 --data '$work/other.bin'
           exec '$work/four' train --quiet --steps 2 --data '$work/tokens.bin'"
finish
