#!/usr/bin/env bash
# Every small model with three microbatches, compiled fused and unfused, with and without reuse of
# memory, run on 1, 2 and 4 threads: the same losses, first gradients, final weights and evaluation,
# to the last bit.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
need_images
steps=6 batch=16 microbatches=3
variants=('' --no-fuse)   # --no-reuse: random graphs
if [ -n "${INFINIC_LONG-}" ]; then
    steps=60 microbatches='1 3'
    variants+=(--no-reuse '--no-fuse --no-reuse')
fi

# run PROGRAM NAME THREADS: losses and norms, gradients, weights and evaluation to $work/NAME.*
run() {
    "$work/$1" train --data "$images" --steps $steps --grad-norm --threads "$3" --quiet \
        --metrics "$work/$2.jsonl" --dump-grads "$work/$2.grads" --out "$work/$2.out" &&
        cp "$work/$2.out/model.safetensors" "$work/$2.weights" &&
        "$work/$1" eval --data "$images" --weights "$work/$2.weights" --threads "$3" --json \
            > "$work/$2.eval" &&
        sed -n '/"event": *"step"/s/.*\("loss": *[^,}]*\).*\("grad_norm": *[^,}]*\).*/\1 \2/p' \
            "$work/$2.jsonl" > "$work/$2.bits" && [ "$(wc -l < "$work/$2.bits")" = $steps ]
}

same() {
    local part
    for part in bits grads weights eval; do cmp "$work/$1.$part" "$work/$2.$part" || return; done
}

for path in tests/e2e/models/*.it; do
    model=$(basename "$path" .it)
    [ "$model" = wide ] && continue      # as mnist_mlp, only larger
    [ "$model" = convs ] && [ -z "${INFINIC_LONG-}" ] && continue # as blocks, only deeper
    [ "$model" = sometimes ] && continue # stops at the first step without a number
    for micro in $microbatches; do
        base=$model.$micro
        for options in "${variants[@]}"; do
            name=$base${options// /}
            # shellcheck disable=SC2086 # options are words
            check "$name compiles" compile "$path" "$work/$name" -D train.B=$batch -D eval.B=1000 \
                -D train.microbatches=$micro $options
            check "$name runs" run "$name" "$name" 2
            [ "$name" = "$base" ] || check "$name: the same bits" same "$base" "$name"
        done
        for threads in 1 4; do
            check "$base runs on $threads threads" run "$base" "$base.t$threads" $threads
            check "$base: $threads threads, the same bits" same "$base" "$base.t$threads"
        done
    done
done
finish
