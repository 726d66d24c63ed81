#!/usr/bin/env bash
# The same bits: two runs, 1, 2 and 4 threads, fused and unfused, with and without memory reuse;
# two builds give the same bytes; eight microbatches of 8 are one batch of 64.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
need_images
steps=25
[ -n "${INFINIC_LONG-}" ] && steps=200

# run NAME PROGRAM [OPTION...]: metrics of a short training run to $work/NAME.jsonl, losses beside.
run() {
    local name=$1 program=$2
    shift 2
    "$work/$program" train --data "$images" --steps $steps --grad-norm --metrics "$work/$name.jsonl" \
        --quiet --dump-grads "$work/$name.grads" "$@" || return
    sed -n '/"event": *"step"/s/.*\("loss": *[^,}]*\).*\("grad_norm": *[^,}]*\).*/\1 \2/p' \
        "$work/$name.jsonl" > "$work/$name.bits"
    [ "$(wc -l < "$work/$name.bits")" = $steps ]
}

same() { cmp "$work/$1.bits" "$work/$2.bits" && cmp "$work/$1.grads" "$work/$2.grads"; }

for model in mnist_mlp mnist_cnn; do
    check "$model compiles" compile "models/$model.it" "$work/$model"
    check "$model compiles again" compile "models/$model.it" "$work/$model.again"
    check "$model: two builds give the same bytes" cmp "$work/$model" "$work/$model.again"
    check "$model runs" run "$model" "$model"
    for threads in 1 2 4; do
        check "$model runs on $threads threads" run "$model.$threads" "$model" --threads $threads
        check "$model: $threads threads, same bits" same "$model" "$model.$threads"
    done
    for option in --no-fuse --no-reuse; do
        check "$model compiles with $option" compile "models/$model.it" "$work/$model$option" $option
        check "$model$option runs" run "$model$option" "$model$option"
        check "$model: $option, same bits" same "$model" "$model$option"
    done
done

# Losses of the first step of 8 x 8 and 1 x 64 within 1e-6, relative; the rest follows the curve.
close() {
    paste "$work/$1.bits" "$work/$2.bits" | tr -d '":a-z_' | awk '
        NR <= 10 { d = ($1 - $3) / $3; if (d < 0) d = -d; if (d > worst) worst = d }
        END { print "largest relative difference", worst; exit !(NR > 0 && worst <= 1e-6) }'
}
for model in mnist_mlp mnist_cnn; do
    check "$model compiles with 8 microbatches of 8" compile "models/$model.it" "$work/$model.8x8" \
        -D train.B=8 -D train.microbatches=8
    check "$model 8 x 8 runs" run "$model.8x8" "$model.8x8"
done
check "mnist_mlp: 8 x 8 is 1 x 64" close mnist_mlp.8x8 mnist_mlp
check "mnist_cnn: 8 x 8 is 1 x 64" close mnist_cnn.8x8 mnist_cnn
finish
