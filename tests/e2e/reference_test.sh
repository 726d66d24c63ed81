#!/usr/bin/env bash
# Gradients and loss curves of the MNIST models against PyTorch's, from the same weights.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
ref=tests/reference

# curve MODEL STEPS: trains in file order from the reference's weights.
curve() {
    "$work/$1" train --data "$images" --init "$ref/$1.safetensors" --no-shuffle --steps "$2" \
        --metrics "$work/$1.jsonl" --quiet
}

for model in mnist_mlp mnist_cnn; do
    check "$model compiles" compile "models/$model.it" "$work/$model"
    check "$model: gradients of the first batch within 1e-5" "$work/$model" verify --data "$images" \
        --init "$ref/$model.safetensors" --ref "$ref/$model.grads.safetensors" --tolerance 1e-5
done

check "mnist_mlp trains 200 steps" curve mnist_mlp 200
check "mnist_mlp: loss within 2e-6 over 200 steps" within $ref/mnist_mlp.loss.txt "$work/mnist_mlp.jsonl" 200 2e-6
check "mnist_cnn trains an epoch" curve mnist_cnn 937
check "mnist_cnn: loss within 5e-6 over 10 steps" within $ref/mnist_cnn.loss.txt "$work/mnist_cnn.jsonl" 10 5e-6
check "mnist_cnn: loss within 3e-3 over 200 steps" within $ref/mnist_cnn.loss.txt "$work/mnist_cnn.jsonl" 200 3e-3

# accuracy METRICS: of the last evaluation, within 0.003 of PyTorch's 0.8358.
accuracy() {
    sed -n '/"event": *"eval"/s/.*"accuracy": *\([^,}]*\).*/\1/p' "$1" | tail -n 1 |
        awk '{ d = $1 - 0.8358; print "accuracy", $1 }
            END { exit !(NR == 1 && d <= 0.003 && d >= -0.003) }'
}
check "mnist_cnn: test accuracy within 0.003 of PyTorch's" accuracy "$work/mnist_cnn.jsonl"
finish
