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
cuda mnist_cnn.tf32 models/mnist_cnn.it --arch=sm_90a,sm_80 -D train.dtype=tf32
cuda mnist_cnn.80 models/mnist_cnn.it --arch=sm_80
cuda wide tests/e2e/models/wide.it --arch=sm_90a,sm_80

# beside NAME MODEL [OPTION...]: for CUDA, and the CPU's losses and first gradients.
beside() {
    local name=$1 model=$2
    cuda "$@" --arch=sm_90a,sm_80
    shift 2
    "$INFINIC" "$model" -o "$out/$name.cpu" --target=cpu "$@"
    "$out/$name.cpu" train --data "$images" --steps 20 --quiet --metrics "$out/$name.jsonl"
    "$out/$name.cpu" train --data "$images" --steps 1 --quiet --no-shuffle \
        --dump-grads "$out/$name.first"
    rm "$out/$name.cpu"
}
cuda convs.tf32 tests/e2e/models/convs.it --arch=sm_90a,sm_80 -D train.dtype=tf32
for model in blocks many tied functions convs; do
    beside $model tests/e2e/models/$model.it
done
beside products tests/e2e/models/wide.it -D width=2048   # large enough for the matrix library

# Steps without a number, and steps of more launches than one graph takes.
cuda sometimes tests/e2e/models/sometimes.it --arch=sm_90a,sm_80
"$INFINIC" tests/e2e/models/sometimes.it -o "$out/sometimes.cpu" --target=cpu
"$out/sometimes.cpu" train --data "$images" --steps 60 --quiet --on-nan=skip --metrics "$out/sometimes.jsonl"
rm "$out/sometimes.cpu"
cuda tasks models/mnist_mlp.it --arch=sm_90a,sm_80 -D train.B=2 -D train.microbatches=2000

# Text generation at the references' sizes, in f32, and in bf16 as the model says.
. "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"
for model in gpt2 llama; do
    file=$([ $model = gpt2 ] && echo models/gpt2.it || echo models/llama3.it)
    sizes=$([ $model = gpt2 ] && echo "$gpt2_tiny" || echo "$llama_tiny")
    cuda $model.generate $file --arch=sm_90a,sm_80 $sizes -D train.dtype=f32
    cuda $model.generate.bf16 $file --arch=sm_90a,sm_80 $sizes
done

# Training at the references' sizes, in f32 and in bf16; recompute and head in chunks change no bit.
cuda gpt2_tiny models/gpt2.it --arch=sm_90a,sm_80 "${gpt2_trained[@]}" -D train.B=4 -D train.dtype=f32
cuda llama_tiny models/llama3.it --arch=sm_90a,sm_80 "${llama_trained[@]}" -D train.B=4 -D train.dtype=f32 \
    -D train.recompute=none
cuda gpt2_tiny.bf16 models/gpt2.it --arch=sm_90a,sm_80 "${gpt2_trained[@]}" -D train.B=4
cuda llama_tiny.bf16 models/llama3.it --arch=sm_90a,sm_80 "${llama_trained[@]}" -D train.B=4 -D train.recompute=none
cuda llama_tiny.unfused models/llama3.it --arch=sm_90a,sm_80 "${llama_trained[@]}" -D train.B=4 -D train.dtype=f32 \
    -D train.recompute=none --no-fuse
wide=("${llama_trained[@]}" -D n_head=2 -D n_kv=1 -D head=64 -D ctx=192 -D train.T=192 -D train.B=2 -D train.recompute=none)
cuda llama_wide.bf16 models/llama3.it --arch=sm_90a,sm_80 "${wide[@]}"
cuda llama_wide.bf16.unfused models/llama3.it --arch=sm_90a,sm_80 "${wide[@]}" --no-fuse
cuda llama_tiny.bf16.layer models/llama3.it --arch=sm_90a,sm_80 "${llama_trained[@]}" -D train.B=4
cuda gpt2_tiny.bf16.2 models/gpt2.it --arch=sm_90a,sm_80 "${gpt2_trained[@]}" -D train.B=2 -D train.microbatches=2

# Pipelines: one chunk; two on one rank, without messages and with; two ranks.
for dtype in f32 bf16; do
    for layout in one vpp2:vpp=2 zbv:vpp=2,pipeline=zb-v loop:vpp=2,messages=chunks \
        loopv:vpp=2,pipeline=zb-v,messages=chunks pp2:pp=2 pp2g:pp=2,pipeline=gpipe pp2h1:pp=2,pipeline=zb-h1 \
        pp2v2:pp=2,vpp=2 pp2zbv:pp=2,vpp=2,pipeline=zb-v; do
        keys=()
        for key in $(tr , ' ' <<< "${layout#"${layout%%:*}"}" | tr -d :); do keys+=(-D "parallel.$key"); done
        cuda gpt2_tiny.$dtype.${layout%%:*} models/gpt2.it --arch=sm_90a "${gpt2_trained[@]}" -D train.B=1 \
            -D train.microbatches=4 -D eval.B=3 -D train.dtype=$dtype "${keys[@]}"
    done
done
# Replicas: one rank that adds up its buckets alone, the second time in small ones, the third as two
# chunks; two replicas, which have the same global batch, and two of a pipeline of two. Then all
# microbatches in one tree, of one rank and of replicas.
for dtype in f32 bf16; do
    for layout in sums:messages=chunks sums64:messages=chunks,bucket=64KB sums2:messages=chunks,vpp=2 sumsz:messages=chunks,zero=1,bucket=64KB \
        dp2:dp=2 dp2z:dp=2,zero=1,bucket=64KB dp2v2:dp=2,vpp=2 dp2pp2:dp=2,pp=2 dp2pp2z:dp=2,pp=2,zero=1,bucket=64KB \
        tree:reduce=ordered treez:reduce=ordered,messages=chunks,zero=1,bucket=64KB treev2:reduce=ordered,vpp=2,pipeline=zb-v \
        dp2tree:reduce=ordered,dp=2 dp2treez:reduce=ordered,dp=2,zero=1,bucket=64KB dp2treev2:reduce=ordered,dp=2,vpp=2 \
        dp2pp2tree:reduce=ordered,dp=2,pp=2,zero=1,bucket=64KB dp4tree:reduce=ordered,dp=4; do
        keys=()
        for key in $(tr , ' ' <<< "${layout#*:}"); do keys+=(-D "parallel.$key"); done
        case $layout in dp4*) n=1 ;; dp2*) n=2 ;; *) n=4 ;; esac
        cuda gpt2_tiny.$dtype.${layout%%:*} models/gpt2.it --arch=sm_90a "${gpt2_trained[@]}" -D train.B=1 \
            -D train.microbatches=$n -D eval.B=3 -D train.dtype=$dtype "${keys[@]}"
    done
done
# The same of LLaMA and the CNN, on one rank and on two.
for model in llama_tiny.f32 llama_tiny.bf16 mnist_cnn.f32; do
    for layout in one: tree:reduce=ordered pp2:pp=2 pp2g:pp=2,pipeline=gpipe pp2h1:pp=2,pipeline=zb-h1 pp2v2:pp=2,vpp=2 \
        pp2zbv:pp=2,vpp=2,pipeline=zb-v dp2:dp=2 dp2z:dp=2,zero=1,bucket=64KB dp2tree:reduce=ordered,dp=2,bucket=64KB; do
        keys=()
        for key in $(tr , ' ' <<< "${layout#*:}"); do keys+=(-D "parallel.$key"); done
        case $layout in dp2*) n=2 ;; *) n=4 ;; esac
        case $model in
        llama*) is=(models/llama3.it "${llama_trained[@]}" -D train.B=1 -D train.recompute=none -D eval.B=3) ;;
        *) is=(models/mnist_cnn.it -D train.B=8) ;;
        esac
        cuda $model.${layout%%:*} "${is[@]}" --arch=sm_90a -D train.microbatches=$n -D train.dtype=${model##*.} \
            -D parallel.zero=0 "${keys[@]}" -W no-empty-chunk
    done
done
# Large enough for their states to be most of their memory.
for layout in zero0:messages=chunks zero1:messages=chunks,zero=1 zero0.dp2:dp=2 zero1.dp2:dp=2,zero=1; do
    keys=()
    for key in $(tr , ' ' <<< "${layout#*:}"); do keys+=(-D "parallel.$key"); done
    cuda gpt2_states.${layout%%:*} models/gpt2.it --arch=sm_90a -D n_layer=4 -D n_head=16 -D n_embd=1024 -D vocab=8192 \
        -D ctx=64 -D train.T=64 -D train.B=1 -D train.microbatches=2 "${keys[@]}"
done
# What two ranks on processors compute, and one with all microbatches in a tree, for the losses of
# one on a device.
for of in pipeline:pp=2 tree:reduce=ordered; do
    "$INFINIC" models/gpt2.it -o "$out/${of%:*}.cpu" --target=cpu "${gpt2_trained[@]}" -D train.B=1 \
        -D train.microbatches=4 -D train.dtype=f32 -D "parallel.${of#*:}"
    "$out/${of%:*}.cpu" train --data tests/reference/tokens.bin --steps 20 --quiet \
        --metrics "$out/${of%:*}.jsonl"
    rm "$out/${of%:*}.cpu"
done

# NCCL's stand-in, for ranks that share one device (lib.sh: find_ranks).
stand_in=$(dirname "$INFINIC")/tests/one_gpu
if [ -e "$stand_in/libnccl.so.2" ]; then
    mkdir -p "$out/one_gpu"
    cp "$stand_in/libnccl.so.2" "$stand_in/one_gpu_try" "$out/one_gpu"
fi
