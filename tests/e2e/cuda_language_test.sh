#!/usr/bin/env bash
# Small GPT-2 and LLaMA models on a device against Hugging Face's values: logits, gradients, twenty
# steps in f32 and bf16; equal bits in every way to run a step; runs that are stopped and resumed.
# Skipped where no device answers. PREBUILT=FOLDER: as in lib.sh.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"
ref=tests/reference
need_programs

# train NAME OUTPUT STEPS [OPTION...]: in file order from the reference's weights.
train() {
    local name=$1 output=$2 steps=$3
    shift 3
    rm -rf "$work/$output.out"
    "$made/$name" train --data $ref/tokens.bin --init "$ref/${name%%.*}.safetensors" --no-shuffle \
        --steps "$steps" --metrics "$work/$output.jsonl" --out "$work/$output.out" --quiet "$@" &&
        norms "$work/$output.jsonl" > "$work/$output.norms"
}

# resumed NAME: 20 steps, and 10 + resume + 10, end with the same weights and optimizer state.
resumed() {
    train "$1" whole 20 --save-every 20 && train "$1" half 10 --save-every 10 &&
        "$made/$1" train --data $ref/tokens.bin --no-shuffle --steps 20 --quiet --save-every 20 \
            --resume="$work/half.out" --out "$work/half.out" &&
        for file in model optimizer; do
            cmp "$work"/whole.out/step-00000020/$file.safetensors \
                "$work"/half.out/step-00000020/$file.safetensors || return
        done
}

for model in gpt2_tiny llama_tiny; do
    for part in logits grads; do
        check "$model: $part within 1e-5" "$made/$model" verify --data $ref/tokens.bin \
            --init "$ref/$model.safetensors" --ref "$ref/$model.$part.safetensors" --tolerance 1e-5
    done
    check "$model trains 20 steps" train $model $model 20
    check "$model: loss within 2e-5" within "$ref/$model.loss.txt" "$work/$model.jsonl" 20 2e-5
    check "$model: norm within 2e-5" within "$ref/$model.norm.txt" "$work/$model.norms" 20 2e-5
    check "$model in bf16 trains" train $model.bf16 $model.bf16 20
    check "$model in bf16: loss within 1e-2" within "$ref/$model.loss.txt" "$work/$model.bf16.jsonl" 20 1e-2
    for dtype in "" .bf16; do
        check "$model$dtype trains again" train $model$dtype again 20
        check "$model$dtype: the same bits again" same_output $model$dtype again
        for flag in --no-graph --stream; do
            check "$model$dtype trains with $flag" train $model$dtype flag 20 $flag
            check "$model$dtype: $flag, same bits" same_output $model$dtype flag
        done
        check "$model$dtype: 20 steps are 10, resume, 10" resumed $model$dtype
    done
done
check "llama_tiny trains with one kernel an operation" train llama_tiny.unfused unfused 20
check "llama_tiny: the same bits with one kernel an operation" same_output llama_tiny unfused
# Heads as wide as models have them: attention turns queries, gradients of queries and keys itself.
for kind in "" .unfused; do
    check "llama_wide.bf16$kind trains" "$made/llama_wide.bf16$kind" train --data $ref/tokens.bin --seed 3 \
        --no-shuffle --steps 10 --quiet --metrics "$work/wide$kind.jsonl" --out "$work/wide$kind.out"
    norms "$work/wide$kind.jsonl" > "$work/wide$kind.norms"
done
check "llama_wide.bf16: the same bits with one kernel an operation" same_output wide wide.unfused
check "llama_tiny in bf16 computes layers again" train llama_tiny.bf16.layer layer 20
check "llama_tiny in bf16: the same bits without saved layers" same_output llama_tiny.bf16 layer
check "gpt2_tiny in bf16 trains in two microbatches" train gpt2_tiny.bf16.2 two 20
check "gpt2_tiny in bf16, two microbatches: loss within 1e-2" within "$ref/gpt2_tiny.loss.txt" "$work/two.jsonl" 20 1e-2
finish
