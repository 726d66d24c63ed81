#!/usr/bin/env bash
# LLaMA and the CNN on two ranks, as cuda_pipeline_test.sh and cuda_replicas_test.sh have GPT-2:
# every pipeline has the bits of one rank, replicas are near it and with reduce = ordered have its
# bits; 200 steps, twice, end alike; who kills a rank is told so. On devices of their own or, by a
# stand-in for NCCL, on one. Skipped where two ranks cannot run.
# PREBUILT=FOLDER: as in lib.sh.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
find_ranks
[ "$most" -ge 2 ] || { echo 'skipped: two ranks need mpirun and two devices, or one and a stand-in for NCCL'; exit 77; }
need_images
need_programs

# train MODEL.LAYOUT OUTPUT [STEPS]
train() {
    local data=tests/reference/tokens.bin
    [[ $1 != mnist* ]] || data=$images
    rm -rf "$work/$2.out"
    timeout 120 "$made/$1" train --data "$data" --quiet --grad-norm --steps "${3:-20}" --metrics "$work/$2.jsonl" \
        --out "$work/$2.out" && norms "$work/$2.jsonl" > "$work/$2.norms"
}

# alike OUTPUT: the bits of one rank. A model without layers sums its norm inside the update on one device, in
# another order than several: there it is near.
alike() {
    local one=${1%.*}.one
    [[ $1 = mnist* ]] || { same_output "$1" "$one"; return; }
    losses "$work/$one.norms" > "$work/wanted"
    within "$work/wanted" "$work/$1.norms" 20 1e-5 && cmp <(losses "$work/$1.jsonl") <(losses "$work/$one.jsonl") &&
        cmp "$work/$1.out/model.safetensors" "$work/$one.out/model.safetensors"
}

for model in llama_tiny.f32 llama_tiny.bf16 mnist_cnn.f32; do
    case $model in *.bf16) tolerance=(2e-2) ;; llama*) tolerance=(2e-5) ;; *) tolerance=(5e-6 10) ;; esac
    for layout in one tree; do check "$model: $layout trains" train $model.$layout $model.$layout; done
    for layout in pp2 pp2g pp2h1 pp2v2 pp2zbv; do
        check "$model: $layout trains$how" ranks train $model.$layout $model.$layout
        check "$model: $layout, the bits of one rank" alike $model.$layout
    done
    for layout in dp2 dp2z; do
        check "$model: $layout trains$how" ranks train $model.$layout $model.$layout
        check "$model: $layout, near one rank" near_output $model.$layout $model.one "${tolerance[@]}"
    done
    check "$model: zero = 1, the bits of zero = 0" same_output $model.dp2z $model.dp2
    check "$model: dp2tree trains$how" ranks train $model.dp2tree $model.dp2tree
    check "$model: reduce = ordered, the bits of one rank" same_output $model.dp2tree $model.tree
    for layout in pp2v2 dp2z; do
        check "$model: $layout, 200 steps$how" ranks train $model.$layout long 200
        check "$model: $layout, 200 steps again$how" ranks train $model.$layout again 200
        check "$model: $layout, the same bits" same_output long again
    done
done
for layout in pp2v2 dp2z; do check "llama_tiny.f32: $layout, a killed rank is named$how" ranks killed_rank "$made/llama_tiny.f32.$layout" --data tests/reference/tokens.bin; done
finish
