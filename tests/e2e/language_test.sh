#!/usr/bin/env bash
# Small GPT-2 and LLaMA models against Hugging Face's, from the same weights and tokens: parameter
# counts, logits, gradients, twenty steps. Settings of the shipped model files are overridden.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
ref=tests/reference
. "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"
gpt2=("${gpt2_trained[@]}" -D train.dtype=f32)
llama=("${llama_trained[@]}" -D train.dtype=f32)

# train NAME OUTPUT [OPTION...]: twenty steps in file order.
train() {
    local name=$1 output=$2
    shift 2
    "$work/$output" train --data $ref/tokens.bin --init "$ref/$name.safetensors" --no-shuffle \
        --steps 20 --metrics "$work/$output.jsonl" --quiet "$@" &&
        norms "$work/$output.jsonl" > "$work/$output.norms"
}

# against NAME MODEL OPTION...: everything that is compared with the reference.
against() {
    local name=$1 model=$2
    shift 2
    check "$name compiles" compile "$model" "$work/$name" "$@" -D train.B=4
    for part in logits grads; do
        check "$name: $part within 1e-5" "$work/$name" verify --data $ref/tokens.bin \
            --init "$ref/$name.safetensors" --ref "$ref/$name.$part.safetensors" --tolerance 1e-5
    done
    check "$name trains 20 steps" train "$name" "$name"
    check "$name: loss within 2e-5" within "$ref/$name.loss.txt" "$work/$name.jsonl" 20 2e-5
    check "$name: norm within 2e-5" within "$ref/$name.norm.txt" "$work/$name.norms" 20 2e-5
    check "$name in two microbatches compiles" compile "$model" "$work/$name.2" "$@" -D train.B=2 \
        -D train.microbatches=2
    check "$name in two microbatches trains" train "$name" "$name.2"
    check "$name in two microbatches: loss within 2e-5" within "$ref/$name.loss.txt" \
        "$work/$name.2.jsonl" 20 2e-5
    losses "$work/$name.jsonl" > "$work/losses.all"
    check "$name on one thread trains" train "$name" "$name" --threads 1
    losses "$work/$name.jsonl" > "$work/losses.one"
    check "$name: the same bits on one thread" cmp "$work/losses.all" "$work/losses.one"
}

against gpt2_tiny models/gpt2.it "${gpt2[@]}"
against llama_tiny models/llama3.it "${llama[@]}"

# Sets of tokens: 5 samples of 32 and the token behind them, u16 without a header.
tail -c +1025 $ref/tokens.bin | head -c 322 > "$work/five.bin"
tail -c +1025 $ref/tokens.bin | head -c 256 > "$work/few.bin"
evaluates() {
    compile models/gpt2.it "$work/eval.$1" "${gpt2[@]}" -D train.B=4 -D eval.B="$1" -D eval.every=10 \
        -D "eval.data=tokens(\"$work/five.bin\")" &&
        "$work/eval.$1" eval --weights $ref/gpt2_tiny.safetensors --json > "$work/eval.$1.json" &&
        cat "$work/eval.$1.json" && grep -q '"samples": *5[,}]' "$work/eval.$1.json" &&
        grep -q '"perplexity": *4[0-9][0-9]' "$work/eval.$1.json"
}
# alike: evaluations in batches of 4 (the last one padded) and of 5 give the same loss.
alike() {
    cat "$work/eval.4.json" "$work/eval.5.json" | sed 's/.*"loss": *\([^,}]*\).*/\1/' |
        awk '{ v[NR] = $1 } END { d = v[1] - v[2]; print v[1], v[2]; exit !(NR == 2 && d * d < 1e-12) }'
}
check "five samples are evaluated in batches of 4" evaluates 4
check "five samples are evaluated in batches of 5" evaluates 5
check "padding does not count" alike
check "evaluation every 10 steps" says "step 10: eval loss" "$work/eval.4" train --steps 12 --quiet \
    --data $ref/tokens.bin
check "too few tokens" says "holds 128 tokens, so 3 samples of T = 32; one step needs 129 tokens" \
    exits 4 "$work/eval.4" train --data "$work/few.bin"
check "a missing file" says "infinic tokenize TEXT -o data/train.bin" exits 4 "$work/eval.4" train
check "a token beyond the vocabulary" says "the model's vocabulary is 0 to 499" exits 4 \
    "$work/eval.4" train --data $ref/gpt2_tiny.safetensors
check "bench counts tokens" says "tokens/s" "$work/eval.4" bench --steps 2

# Attention keeps no scores: nothing in any kernel or buffer has their shape.
no_scores() {
    "$INFINIC" "$@" --target=cpu -d fuse --stop-after=fuse > "$work/fuse.ir" 2> /dev/null &&
        grep -q 'form="attention_grad"' "$work/fuse.ir" && ! grep -q ',32,32\]' "$work/fuse.ir"
}
check "gpt2_tiny keeps no scores" no_scores models/gpt2.it "${gpt2[@]}" -D train.B=4
check "llama_tiny keeps no scores" no_scores models/llama3.it "${llama[@]}" -D train.B=4

# counts TEXT MODEL [OPTION...]
counts() {
    local text=$1
    shift
    says "$text" "$INFINIC" "$@" --target=cpu --emit=params
}
check "gpt2.it counts 124,439,808 parameters" counts \
    "124439808 parameters in 148 tensors; 124475904 stored" models/gpt2.it
check "llama3.it of 1B counts 1,235,814,400 parameters" counts "1235814400 parameters in 146 tensors" \
    models/llama3.it -D n_layer=16 -D n_embd=2048 -D head=64 -D ffn=8192 -D tied=true
finish
