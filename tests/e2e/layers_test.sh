#!/usr/bin/env bash
# Repeats, tied weights, many layers and optimizers: they train, fused and unfused bits agree,
# microbatches change nothing, and the generated program does not grow with the number of blocks.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
here=tests/e2e/models
steps=20

train() {
    local name=$1
    shift
    "$work/$name" train --data "$images" --steps $steps --grad-norm --metrics "$work/$name.jsonl" --quiet "$@" &&
        losses "$work/$name.jsonl" > "$work/$name.bits" && [ "$(wc -l < "$work/$name.bits")" = $steps ]
}

# falls NAME: the mean loss of the last five steps is below that of the first five.
falls() {
    awk 'NR <= 5 { a += $1 } { last[NR % 5] = $1 } END { for (i in last) b += last[i]; print a / 5, b / 5; exit !(b < a) }' \
        "$work/$1.bits"
}
same() { cmp "$work/$1.bits" "$work/$2.bits"; }
close() {
    paste "$work/$1.bits" "$work/$2.bits" | awk '
        NR <= 5 { d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > worst) worst = d }
        END { print "largest relative difference", worst; exit !(NR > 0 && worst <= 1e-6) }'
}

models='blocks tied many padded'
optimizers=('sgd(lr = 0.05)' 'sgd(lr = 0.02, momentum = 0.9)' 'adam(lr = 1e-3)' 'adamw(lr = 1e-3, decay = 0.1)')
if [[ $BUILD = */asan && -z ${INFINIC_LONG-} ]]; then models=padded optimizers=("${optimizers[3]}"); fi   # cc's half is the same
for model in $models; do
    check "$model compiles" compile $here/$model.it "$work/$model"
    check "$model trains" train $model
    check "$model: the loss falls" falls $model
    check "$model compiles unfused" compile $here/$model.it "$work/$model-plain" --no-fuse --no-reuse
    check "$model trains unfused" train $model-plain
    check "$model: fused is unfused, bit for bit" same $model $model-plain
    check "$model: passes keep its meaning" "$INFINIC" $here/$model.it --verify-passes --target=cpu \
        -D train.B=2 -D eval.B=2 -o "$work/$model-verified"
done
check 'padded compiles without padding' compile $here/padded.it "$work/padded-none" -D pad=1
check 'padded trains without padding' train padded-none
check 'padding rows change nothing' close padded padded-none
# Head and loss in chunks of rows, whole and in microbatches; passes keep the meaning.
for chunks in 4:64:1 2:8:8; do
    IFS=: read -r n batch microbatches <<< "$chunks"
    set -- -D train.chunk_loss="$n" -D train.B="$batch" -D train.microbatches="$microbatches"
    check "padded compiles with $n chunks" compile $here/padded.it "$work/padded-$n" "$@"
    check "padded trains with $n chunks" train "padded-$n"
    check "$n chunks of $batch rows change nothing" close "padded-$n" padded
    check "$n chunks: passes keep the meaning" "$INFINIC" $here/padded.it --verify-passes --target=cpu "$@" \
        -D eval.B=2 -o "$work/padded-verified"
    check "padded compiles unfused with $n chunks" compile $here/padded.it "$work/padded-plain-$n" --no-fuse --no-reuse "$@"
    check "padded trains unfused with $n chunks" train "padded-plain-$n"
    check "$n chunks: fused is unfused, bit for bit" same "padded-$n" "padded-plain-$n"
done
for model in blocks tied; do
    [[ " $models " == *" $model "* ]] || continue
    check "$model compiles with 8 microbatches" compile $here/$model.it "$work/$model-8" \
        -D train.B=8 -D train.microbatches=8
    check "$model trains with 8 microbatches" train $model-8
    check "$model: 8 x 8 is 1 x 64" close $model-8 $model
done

# The C file of 500 blocks is about as long as that of 5: only sizes differ, and how sums over the
# longer parameter vector are cut.
lines() { "$INFINIC" $here/blocks.it -D n="$1" --emit=c --target=cpu | wc -l; }
check "500 blocks are one block, 500 times" eval 'a=$(lines 5) b=$(lines 500); echo "$a $b lines"; [ "$a" -gt 100 ] && [ "$b" -le $((a * 11 / 10)) ]'
check "500 blocks compile" compile $here/blocks.it "$work/blocks-500" -D n=500 -D width=16

for optimizer in "${optimizers[@]}"; do
    check "$optimizer compiles" compile models/mnist_mlp.it "$work/optimizer" -D "train.optimizer=$optimizer"
    check "$optimizer trains" train optimizer
    check "$optimizer: the loss falls" falls optimizer
done

# planned NAME: planned and measured memory within 2 %.
planned() {
    "$work/$1" info --time --json > "$work/info.json" || return
    tr ',{}' '\n\n\n' < "$work/info.json" | tr -d '" ' | awk -F: '
        $1 == "planned_bytes" { planned = $2 } $1 == "measured_bytes" { measured = $2 }
        END { print planned, measured; d = (measured - planned) / planned; if (d < 0) d = -d
              exit !(planned > 200e6 && d <= 0.02) }'
}
check "wide compiles" compile $here/wide.it "$work/wide"
check "wide: measured memory within 2 % of the plan" planned wide
finish
