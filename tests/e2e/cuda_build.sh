#!/usr/bin/env bash
# Makes what cuda_test.sh needs, in a folder that can be carried to a machine with a device but
# without our tools:  INFINIC=path tests/e2e/cuda_build.sh FOLDER
#
# The models for CUDA, and what their CPU builds compute from the same seeds.
set -eu
: "${INFINIC:?names the program under test}"
out=$1
images=${INFINIC_IMAGES:-/usr/share/datasets/fashion-mnist}
mkdir -p "$out"

# cuda NAME MODEL [OPTION...]
cuda() {
    local name=$1 model=$2
    shift 2
    "$INFINIC" "$model" -o "$out/$name" --target=cuda --march=x86-64-v3 "$@"
}

for model in mnist_mlp mnist_cnn; do
    cuda $model models/$model.it --arch=sm_90a,sm_80
    cuda $model.nofuse models/$model.it --arch=sm_90a,sm_80 --no-fuse
    cuda $model.8x8 models/$model.it --arch=sm_90a,sm_80 -D train.B=8 -D train.microbatches=8
done
cuda mnist_cnn.80 models/mnist_cnn.it --arch=sm_80
for model in blocks many tied wide; do
    cuda $model tests/e2e/models/$model.it --arch=sm_90a,sm_80
    "$INFINIC" tests/e2e/models/$model.it -o "$out/$model.cpu" --target=cpu
    "$out/$model.cpu" train --data "$images" --steps 20 --quiet --grad-norm \
        --metrics "$out/$model.jsonl"
    "$out/$model.cpu" train --data "$images" --steps 1 --quiet --no-shuffle \
        --dump-grads "$out/$model.first"
    rm "$out/$model.cpu"
done
