#!/usr/bin/env bash
# Data parallel over real ranks: replicas train what one rank trains on the same global batch, but
# for the order in which gradients are added; they stay equal bit for bit, whatever the layout.
# With --long the whole matrix of replicas, pipelines and microbatches.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
[ -x "$BUILD/tests/mpi/ranks" ] || { echo "skipped: built without MPI (Debian's libopenmpi-dev)"; exit 77; }
command -v mpirun > /dev/null || { echo "skipped: no mpirun (Debian's openmpi-bin)"; exit 77; }
ref=tests/reference
limit=120   # seconds; a run takes one or two
export OMP_NUM_THREADS=1   # of each rank; bits do not depend on it

# Most layouts in half the time: cc optimizes less.
printf '#!/bin/sh\nexec cc "$@" -O1\n' > "$work/cc" && chmod +x "$work/cc"
export CC=$work/cc

# settings MODEL: into the array `is`, and its data into `with`.
settings() {
    with=(--data "$images")
    case $1 in
    gpt2) is=(models/gpt2.it "${gpt2_trained[@]}" -D train.dtype=f32 -D train.B=2) with=(--data $ref/tokens.bin) ;;
    llama) is=(models/llama3.it "${llama_trained[@]}" -D train.dtype=f32 -D train.B=2 -D parallel.zero=0) with=(--data $ref/tokens.bin) ;;
    cnn) is=(models/mnist_cnn.it -D train.B=16 -D train.schedule=constant -D eval.B=1000) ;;
    mlp) is=(models/mnist_mlp.it -D train.B=16 -D train.schedule=constant -D eval.B=3000) ;;
    esac
}

# build MODEL MICROBATCHES NAME [KEY=VALUE...]: a layout's executable; microbatches of each replica.
build() {
    local model=$1 n=$2 name=$3 key
    shift 3
    settings "$model"
    is+=(-D train.microbatches="$n")
    for key in "$@"; do is+=(-D "parallel.$key"); done
    compile "${is[0]}" "$work/bin.$name" "${is[@]:1}" -W no-empty-chunk
}

# train MODEL NAME OUT [OPTION...]: twenty steps; metrics, gradients and checkpoints into $work/OUT.
train() {
    local name=$2 out=$work/$3
    settings "$1"
    shift 3
    rm -rf "$out" && mkdir -p "$out" &&
        timeout $limit "$work/bin.$name" train "${with[@]}" --steps 20 --lr 1e-2 --grad-norm \
            --save-every 10 --out "$out/run" --metrics "$out/metrics.jsonl" --quiet --check-replicas 5 \
            --dump-grads "$out/grads.safetensors" "$@" > "$out/log" 2>&1 || { cat "$out/log"; return 1; }
    sed -n '/"event": *"\(step\|eval\)"/s/, *"\(ms\|[a-z]*_per_s\|mfu\|mem_[a-z]*\)": *[^,}]*//gp' \
        "$out/metrics.jsonl" > "$out/numbers"
}

# same OUT REFERENCE: every number and every file.
same() {
    local file
    [ "$(wc -l < "$work/$1/numbers")" -ge 20 ] || { echo "fewer than 20 steps"; return 1; }
    diff "$work/$1/numbers" "$work/$2/numbers" || return 1
    for file in grads.safetensors run/model.safetensors run/step-000000{10,20}/{model,optimizer}.safetensors; do
        cmp "$work/$1/$file" "$work/$2/$file" || return 1
    done
}

# near OUT REFERENCE STEPS TOLERANCE: losses.
near() {
    losses "$work/$2/metrics.jsonl" > "$work/wanted"
    within "$work/wanted" "$work/$1/metrics.jsonl" "$3" "$4"
}

# How far losses of a model may be from one rank's, over how many of the twenty steps.
steps_of() { case $1 in cnn) echo 10 ;; *) echo 20 ;; esac; }
tolerance_of() { case $1 in cnn) echo 5e-6 ;; mlp) echo 3e-6 ;; *) echo 2e-5 ;; esac; }

# layout MODEL MICROBATCHES REFERENCE [KEY=VALUE...]: trains into $work/layout.
layout() {
    local model=$1
    build "$1" "$2" layout "${@:4}" && train "$1" layout layout &&
        near layout "$3" "$(steps_of "$model")" "$(tolerance_of "$model")"
}

# layouts MODEL MICROBATCHES DP "KEY=VALUE ..."...: each against one rank with all microbatches, and
# bit for bit against the first, which has as many replicas.
layouts() {
    local model=$1 n=$2 dp=$3 one=$1.$(($2 * $3)) first=$1.$2.$3 keys
    shift 3
    if [ ! -e "$work/$one" ]; then
        check "$model, $((n * dp)) microbatches, one rank" build "$model" $((n * dp)) one
        check "$model, $((n * dp)) microbatches, trains" train "$model" one "$one"
    fi
    for keys in "$@"; do
        # shellcheck disable=SC2086
        check "$model, dp $dp x $n microbatches, $keys: near one rank" layout "$model" "$n" "$one" "dp=$dp" $keys
        if [ -e "$work/$first" ]; then
            check "$model, dp $dp x $n microbatches, $keys: the bits of other layouts" same layout "$first"
        else
            mv "$work/layout" "$work/$first" && mv "$work/bin.layout" "$work/bin.$first"
        fi
    done
}

if [ -n "${INFINIC_LONG-}" ]; then
    every=("pp=1" "pp=2" "pp=1 vpp=2" "pp=2 vpp=2" "pp=2 pipeline=zb-h1" "pp=2 vpp=2 pipeline=zb-v")
    for bucket in 1KB 64KB 100MB; do every+=("pp=2 bucket=$bucket" "pp=1 bucket=$bucket"); done
    for model in gpt2 llama cnn mlp; do
        for dp in 2 3 4; do
            for n in 1 2 4; do layouts $model $n $dp "${every[@]}"; done
        done
    done
else
    layouts mlp 2 2 "pp=1"
    layouts cnn 1 3 "pp=1" "pp=2 vpp=2"
    layouts gpt2 2 2 "pp=1" "pp=2" "pp=2 vpp=2" "pp=1 vpp=2 bucket=1KB"
    layouts llama 1 3 "pp=1"
fi

again() { train gpt2 gpt2.2.2 again && same again gpt2.2.2; }
check "two runs: the same bits" again

# An epoch that does not end with a whole global batch, in file order, and evaluations whose last
# round has a batch for one replica only: every number of the result is one rank's.
epochs() {
    settings mlp
    timeout $limit "$work/bin.$1" eval --data "$images" --weights "$work/mlp.4/run" > "$work/eval.$1"
}
check "one rank evaluates" build mlp 4 one
check "one rank evaluates" epochs one
check "replicas evaluate" epochs mlp.2.2
check "the same evaluation, bit for bit" cmp "$work/eval.one" "$work/eval.mlp.2.2"
finish
