#!/usr/bin/env bash
# reduce = ordered: whatever the number of replicas, the pipeline, who keeps the optimizer's state and
# how gradients are cut into buckets, twenty steps have the losses, norms, gradients, weights and
# optimizer state of one rank with the same microbatches, bit for bit. With --long the whole matrix.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
need_ranks
ref=tests/reference
limit=120   # seconds; a run takes one or two
export OMP_NUM_THREADS=1   # of each rank; bits do not depend on it
light_cc

# build MODEL MICROBATCHES NAME [KEY=VALUE...]: microbatches of each replica.
build() {
    local model=$1 n=$2 name=$3 key
    shift 3
    with=(--data $ref/tokens.bin)
    case $model in
    gpt2) is=(models/gpt2.it "${gpt2_trained[@]}" -D train.dtype=f32 -D train.B=1) ;;
    llama) is=(models/llama3.it "${llama_trained[@]}" -D train.dtype=f32 -D train.B=1 -D parallel.zero=0) ;;
    odd) is=(models/gpt2.it "${gpt2_trained[@]}" -D train.dtype=f32 -D train.B=1 -D n_embd=36 -D vocab=503) ;;
    cnn) is=(models/mnist_cnn.it -D train.B=8 -D train.schedule=constant -D eval.B=1000) with=(--data "$images") ;;
    esac
    is+=(-D train.microbatches="$n" -D parallel.reduce=ordered)
    for key in "$@"; do is+=(-D "parallel.$key"); done
    compile "${is[0]}" "$work/bin.$name" "${is[@]:1}" -W no-empty-chunk
}

# train NAME OUT [STEPS]: a checkpoint every ten steps, and of the last one.
train() {
    local name=$1 out=$work/$2 steps=${3:-20} every=10
    [ $((steps % 10)) = 0 ] || every=$steps
    rm -rf "$out" && mkdir -p "$out" &&
        timeout $limit "$work/bin.$name" train "${with[@]}" --lr 1e-2 --grad-norm --steps $steps --save-every $every \
            --out "$out/run" --metrics "$out/metrics.jsonl" --quiet --check-replicas 10 \
            --dump-grads "$out/grads.safetensors" > "$out/log" 2>&1 || { cat "$out/log"; return 1; }
    numbers "$out/metrics.jsonl" > "$out/numbers"
}

one() { build "$1" "$2" "$1.$2" && train "$1.$2" "$1.$2"; }
layout() { build "$1" "$2" layout "${@:4}" && train layout layout && same_run layout "$3"; }

# layouts MODEL MICROBATCHES DP "KEY=VALUE ..."...: each against one rank with all microbatches.
layouts() {
    local model=$1 n=$2 dp=$3 one=$1.$(($2 * $3)) keys
    shift 3
    [ -e "$work/$one" ] || check "$model, $((n * dp)) microbatches, one rank" one "$model" $((n * dp))
    for keys in "$@"; do
        # shellcheck disable=SC2086
        check "$model, dp $dp x $n microbatches, $keys: the bits of one rank" layout "$model" "$n" "$one" "dp=$dp" $keys
    done
}

if [ -n "${INFINIC_LONG-}" ]; then
    every=()
    for pp in 1 2; do
        for vpp in 1 2; do
            for zero in 0 1; do
                for bucket in 1KB 64KB 100MB; do every+=("pp=$pp vpp=$vpp zero=$zero bucket=$bucket"); done
            done
        done
    done
    for model in gpt2 llama cnn odd; do
        for dp in 1 2 3 4; do
            for n in 1 2 4; do layouts $model $n $dp "${every[@]}"; done
        done
    done
else
    layouts gpt2 3 2 "zero=0" "zero=1 bucket=64KB" "pp=2 pipeline=zb-h1 zero=1" "pp=2 vpp=2 bucket=1KB"
    layouts gpt2 2 3 "zero=1 bucket=1KB"   # the same six
    layouts odd 1 3 "pp=2 zero=1 bucket=1KB"
    layouts llama 1 2 "pp=2 zero=1"
    layouts cnn 2 2 "zero=1 bucket=64KB"
fi

# Any layout's checkpoint goes on under any other: parameters and states are whole tensors in files.
saved=("6" "3 dp=2 zero=1 bucket=64KB" "2 dp=3 zero=1 bucket=1KB" "3 dp=2 pp=2 zero=1" "6 pp=2 vpp=2" "2 dp=3 pp=2 vpp=2")
[ -n "${INFINIC_LONG-}" ] || saved=("${saved[0]}" "${saved[3]}")

# goes_on FROM TO: ten steps under one layout, two more under another, as one rank's twelve.
goes_on() {
    local file out=$work/moved
    rm -rf "$out" && mkdir -p "$out/run" && cp -r "$work/from.$1/run/step-00000010" "$out/run" &&
        timeout $limit "$work/bin.pair.$2" train "${with[@]}" --steps 12 --lr 1e-2 --quiet --save-every 2 --resume \
            --out "$out/run" > "$out/log" 2>&1 || { cat "$out/log"; return 1; }
    for file in {model,optimizer}.safetensors; do
        cmp "$out/run/step-00000012/$file" "$work/twelve/run/step-00000012/$file" || return 1
    done
}
for i in "${!saved[@]}"; do
    # shellcheck disable=SC2086
    check "${saved[i]}: builds" build gpt2 ${saved[i]%% *} pair.$i $(cut -s -d' ' -f2- <<< "${saved[i]}")
    check "${saved[i]}: ten steps" train pair.$i from.$i 10
done
check "one rank, twelve steps" train pair.0 twelve 12
for i in "${!saved[@]}"; do
    for k in "${!saved[@]}"; do check "from '${saved[i]}' to '${saved[k]}': the same bits" goes_on $i $k; done
done
finish
