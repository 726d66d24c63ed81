#!/usr/bin/env bash
# Pipelines on a device: chunks of one rank change no bit, whether they hand over in memory or by
# messages through NCCL, in a graph or launch by launch; and so have two ranks, on two devices or, by
# a stand-in for NCCL, on one. Skipped where no device answers.
# PREBUILT=FOLDER: as in lib.sh.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"
ref=tests/reference
need_programs
find_ranks

# train NAME OUTPUT [OPTION...]: 20 steps unless the first option is --steps.
train() {
    local name=$1 output=$2
    shift 2
    [ "${1:-}" = --steps ] || set -- --steps 20 "$@"
    rm -rf "$work/$output.out"
    timeout 120 "$made/gpt2_tiny.$name" train --data $ref/tokens.bin --quiet --grad-norm \
        --metrics "$work/$output.jsonl" --out "$work/$output.out" "$@" &&
        norms "$work/$output.jsonl" > "$work/$output.norms"
}

for dtype in f32 bf16; do
    check "$dtype: one chunk trains" train $dtype.one $dtype.one
    for layout in vpp2 zbv loop loopv; do
        check "$dtype: $layout trains" train $dtype.$layout $dtype.$layout
        check "$dtype: $layout, same bits" same_output $dtype.one $dtype.$layout
        check "$dtype: $layout trains with --no-graph" train $dtype.$layout plain --no-graph
        check "$dtype: $layout with --no-graph, same bits" same_output $dtype.one plain
    done
    [ "$most" -ge 2 ] || continue
    for layout in pp2 pp2g pp2h1 pp2v2 pp2zbv; do
        check "$dtype: $layout trains$how" ranks train $dtype.$layout $dtype.$layout
        check "$dtype: $layout, same bits" same_output $dtype.one $dtype.$layout
        check "$dtype: $layout trains with --no-graph$how" ranks train $dtype.$layout plain --no-graph
        check "$dtype: $layout with --no-graph, same bits" same_output $dtype.one plain
    done
done
losses "$made/pipeline.jsonl" > "$work/pipeline.losses"
check "f32: loss within 2e-5 of two ranks on processors" within "$work/pipeline.losses" "$work/f32.one.jsonl" 20 2e-5
check "bf16: loss within 1e-2 of two ranks on processors" within "$work/pipeline.losses" "$work/bf16.one.jsonl" 20 1e-2
# resumed NAME: 20 steps, and 10 + resume + 10, end with the same weights.
resumed() {
    train "$1" half --steps 10 --save-every 10 && timeout 120 "$made/gpt2_tiny.$1" train --data $ref/tokens.bin \
        --steps 20 --quiet --resume="$work/half.out" --out "$work/half.out" &&
        cmp "$work/$1.out/model.safetensors" "$work/half.out/model.safetensors"
}
if [ "$most" -ge 2 ]; then
    check "two ranks: 20 steps are 10, resume, 10$how" ranks resumed f32.pp2
    check "a killed rank is named$how" ranks killed_rank "$made/gpt2_tiny.f32.pp2" --data tests/reference/tokens.bin
    check "two ranks on one device are refused" says "have the same device" env CUDA_VISIBLE_DEVICES=0 \
        "$made/gpt2_tiny.f32.pp2" train --data $ref/tokens.bin --steps 1 --quiet
else
    echo 'left out: two ranks, which need mpirun and two devices, or one and a stand-in for NCCL'
fi
finish
