#!/usr/bin/env bash
# A save of several ranks that ends anywhere, because rank 0, who writes, or another rank is killed,
# leaves something to go on from: the run that resumes ends with the bits of one that was not broken.
# With --long many points of every layout.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_ranks
export OMP_NUM_THREADS=1
light_cc

# Large enough that messages of a save do not all fit into what MPI sends ahead.
tiny=(-D n_layer=2 -D n_embd=32 -D n_head=2 -D vocab=500 -D ctx=32 -D train.B=1 -D train.T=16 -D train.microbatches=2
    -D train.dtype=f32 -W no-empty-chunk)
perl -e 'print pack("V3 x1012", 20240520, 1, 4001);
    my $x = 7; for (1 .. 4001) { $x = ($x * 1103515245 + 12345) % 2147483648; print pack("v", ($x >> 12) % 500) }' > "$work/tokens.bin"
check "the shim compiles" cc -shared -fPIC -O1 tests/e2e/shim/faults.c -o "$work/faults.so" -ldl

# trains OUT OPTION...
trains() {
    local out=$1
    shift
    timeout 60 "$work/gpt2" train --data "$work/tokens.bin" --quiet --save-every 2 --out "$out" "$@"
}

# A run that has saved at step 2, to go on from, and one that was never broken.
starts() {
    rm -rf "$work/start" "$work/straight"
    compile models/gpt2.it "$work/gpt2" "${tiny[@]}" "$@" && trains "$work/start" --steps 2 &&
        rm "$work/start/model.safetensors" && trains "$work/straight" --steps 6
}

# faulty KIND POINT RANK: goes on from step 2, saves at 4 and 6 and at the end, with a fault.
faulty() {
    rm -rf "$work/run" "$work/count" "$work/pids"
    mkdir "$work/pids" && cp -r "$work/start" "$work/run" &&
        FAULT_UNDER="$work/run" FAULT_KIND="$1" FAULT_AT="$2" FAULT_RANK="$3" FAULT_PIDS="$work/pids" \
            FAULT_COUNT="$work/count" LD_PRELOAD="$work/faults.so" trains "$work/run" --steps 6 --resume > "$work/fault.log" 2>&1
}
# killed_at POINT RANK: whoever is left leaves, too; the run is loadable and ends where it would have.
killed_at() {
    local file
    faulty kill "$1" "$2"
    [ $? = 7 ] && grep -q -E "rank $2 (= .*)?\(process [0-9]+\) died" "$work/fault.log" || { cat "$work/fault.log"; return 1; }
    trains "$work/run" --steps 6 --resume > "$work/on.log" 2>&1 && ! grep damaged "$work/on.log" || { cat "$work/on.log"; return 1; }
    for file in model.safetensors step-0000000{4,6}/{model,optimizer}.safetensors; do
        cmp "$work/straight/$file" "$work/run/$file" || return 1
    done
    ! find "$work/run" -name '*.tmp*' | grep .
}

# kills NAME RANK SHARE SAMPLE: rank RANK, at each of SAMPLE points that divide the calls of the saves
# evenly, but for a first SHARE (of 100) of a distance.
kills() {
    local name=$1 rank=$2 share=$3 sample=$4 i point
    for ((i = 0; i < sample; i++)); do
        point=$((1 + (points - 1) * (100 * i + share) / (100 * sample)))
        check "$name: rank $rank killed at call $point of $points: goes on with the same bits" killed_at $point "$rank"
    done
}

# layout SAMPLE OTHER KEY=VALUE...: kills of rank 0, and of rank OTHER.
layout() {
    local sample=$1 other=$2 key settings=()
    shift 2
    for key in "$@"; do settings+=(-D "parallel.$key"); done
    check "$*: a run to start from" starts "${settings[@]}"
    check "$*: counts the calls of the saves" faulty none 0 0
    points=$(cat "$work/count")
    check "$*: there are at least 50 of them" test "$points" -ge 50
    kills "$*" 0 40 "$sample"
    kills "$*" "$other" 80 "$sample"
}

if [ -n "${INFINIC_LONG-}" ]; then
    layout 25 1 dp=2 zero=1
    layout 25 1 pp=2
    layout 25 3 dp=2 pp=2
    layout 25 2 dp=2 pp=2 zero=1
else
    layout 1 3 dp=2 pp=2 zero=1
fi
finish
