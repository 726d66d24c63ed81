#!/usr/bin/env bash
# The CUDA target on a device: gradients and curves against PyTorch's and the CPU's, equal bits in
# every way to run a step, memory as planned, no bad access. Skipped where no device answers.
#
# PREBUILT=FOLDER: as in lib.sh. INFINIC_IMAGES names Fashion-MNIST as IDX files.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
ref=tests/reference
need_programs
"$made/mnist_mlp" bench --steps 1 > "$work/first.log" 2>&1 ||
    if grep -q 'driver is missing\|no CUDA device' "$work/first.log"; then
        echo "skipped: $(head -n 1 "$work/first.log")"
        exit 77
    fi

# gradients MODEL FILE [TOLERANCE]: of the first batch, from the reference's weights.
gradients() {
    "$made/$1" verify --data "$images" --init "$ref/$2.safetensors" \
        --ref "$ref/$2.grads.safetensors" --tolerance "${3:-1e-5}"
}

# curve NAME OUTPUT STEPS OPTION...: trains; metrics, weights and first gradients are kept.
curve() {
    local name=$1 output=$2 steps=$3
    shift 3
    rm -rf "$work/$output.out"
    "$made/$name" train --data "$images" --steps "$steps" --quiet --grad-norm --out "$work/$output.out" \
        --metrics "$work/$output.jsonl" --dump-grads "$work/$output.grads" "$@"
}

# bits OUTPUT: what must be equal to the last bit: losses and norms as written, weights, gradients.
bits() {
    sed -n '/"event": *"\(step\|eval\)"/s/"\(ms\|units_per_s\|mem_[a-z]*\)": *[^,}]*,*//gp' "$work/$1.jsonl" |
        cat - "$work/$1.out/model.safetensors" "$work/$1.grads"
}
same() { cmp <(bits "$1") <(bits "$2"); }

for model in mnist_mlp mnist_cnn; do
    for how in "" .nofuse .8x8; do
        check "$model$how: gradients of the first batch within 1e-5" gradients $model$how $model
    done
    check "$model trains an epoch" curve $model $model 937 --init $ref/$model.safetensors --no-shuffle
    check "$model trains again" curve $model $model.again 937 --init $ref/$model.safetensors --no-shuffle
    check "$model: the same bits again" same $model $model.again
    check "$model trains 100 steps" curve $model $model.graph 100
    for flag in --no-graph --stream --threads=1; do
        check "$model trains with $flag" curve $model $model.flag 100 $flag
        check "$model: $flag, same bits" same $model.graph $model.flag
    done
    check "$model.nofuse trains" curve $model.nofuse $model.nofuse 100
    check "$model: --no-fuse, same bits" same $model.graph $model.nofuse
done
check "mnist_mlp: loss within 2e-6 over 200 steps" within $ref/mnist_mlp.loss.txt "$work/mnist_mlp.jsonl" 200 2e-6
check "mnist_cnn: loss within 5e-6 over 10 steps" within $ref/mnist_cnn.loss.txt "$work/mnist_cnn.jsonl" 10 5e-6
check "mnist_cnn: loss within 3e-3 over 200 steps" within $ref/mnist_cnn.loss.txt "$work/mnist_cnn.jsonl" 200 3e-3
check "mnist_cnn from PTX or an older cubin: gradients" gradients mnist_cnn.80 mnist_cnn

# Rounding moves some ReLUs across zero, hence 2e-2; the same rounding in f64 is much closer.
check "mnist_cnn in tf32: gradients within 2e-2" gradients mnist_cnn.tf32 mnist_cnn 2e-2
check "mnist_cnn in tf32: gradients as rounded factors give them" "$made/mnist_cnn.tf32" verify \
    --data "$images" --init $ref/mnist_cnn.safetensors --ref $ref/mnist_cnn.tf32.safetensors --tolerance 1e-3
check "mnist_cnn in tf32 trains" curve mnist_cnn.tf32 tf32 937 --init $ref/mnist_cnn.safetensors --no-shuffle
check "mnist_cnn in tf32 trains again" curve mnist_cnn.tf32 tf32.again 937 --init $ref/mnist_cnn.safetensors --no-shuffle
check "mnist_cnn in tf32: the same bits again" same tf32 tf32.again
check "mnist_cnn in tf32: loss within 2e-3 over 10 steps" within $ref/mnist_cnn.loss.txt "$work/tf32.jsonl" 10 2e-3

accuracy() {
    sed -n '/"event": *"eval"/s/.*"accuracy": *\([^,}]*\).*/\1/p' "$1" | tail -n 1 |
        awk '{ d = $1 - 0.8358; print "accuracy", $1 }
            END { exit !(NR == 1 && d <= 0.003 && d >= -0.003) }'
}
check "mnist_cnn: test accuracy within 0.003 of PyTorch's" accuracy "$work/mnist_cnn.jsonl"
check "mnist_cnn in tf32: test accuracy within 0.003 of PyTorch's" accuracy "$work/tf32.jsonl"

# Other layers, optimizers, clipping, dropout: against the CPU from the same seed.
for model in blocks many tied functions convs products; do
    check "$model trains" curve $model $model 20
    check "$model trains again" curve $model $model.again 20 --no-graph
    check "$model: the same bits" same $model $model.again
    losses "$made/$model.jsonl" > "$work/$model.losses"
    check "$model: loss within 1e-4 of the CPU's over 20 steps" within "$work/$model.losses" "$work/$model.jsonl" 20 1e-4
    check "$model: first gradients within 2e-5 of the CPU's" "$made/$model" verify --data "$images" \
        --ref "$made/$model.first" --tolerance 2e-5
done

# Skipped updates do not count, though the step behind them is on its way: as on the CPU. Steps
# without a number print as null.
check "sometimes trains" curve sometimes sometimes 60 --on-nan=skip
check "sometimes trains with --no-graph" curve sometimes sometimes.again 60 --on-nan=skip --no-graph
check "sometimes: the same bits" same sometimes sometimes.again
losses "$made/sometimes.jsonl" > "$work/sometimes.losses"
check "sometimes: the same steps skipped as on the CPU" cmp \
    <(grep -n null "$work/sometimes.losses") <(losses "$work/sometimes.jsonl" | grep -n null)
check "sometimes: loss within 1e-5 of the CPU's over 60 steps" within "$work/sometimes.losses" "$work/sometimes.jsonl" 60 1e-5

check "2000 microbatches, a graph each: trains" curve tasks tasks 3
check "2000 microbatches with --no-graph" curve tasks tasks.plain 3 --no-graph
check "the same bits" same tasks tasks.plain

# Six convolutions deep, in tf32.
check "convs in tf32 trains" curve convs.tf32 convs.tf32 20
check "convs in tf32 trains again" curve convs.tf32 convs.tf32.again 20 --no-graph
check "convs in tf32: the same bits" same convs.tf32 convs.tf32.again
check "convs in tf32: loss within 2e-3 of the CPU's over 20 steps" within "$work/convs.losses" "$work/convs.tf32.jsonl" 20 2e-3
check "convs in tf32: first gradients within 5e-2 of the CPU's" "$made/convs.tf32" verify --data "$images" \
    --ref "$made/convs.first" --tolerance 5e-2

# Text: in f32 the reference's, in bf16 whole texts that are the same again, with graphs and without.
for model in gpt2 llama; do
    check "$model: ten greedy continuations are the reference's" greedy ${model}_tiny "$made/$model.generate"
    check "$model: with --no-graph, too" greedy ${model}_tiny "$made/$model.generate" --no-graph
    for run in first --no-graph; do
        "$made/$model.generate.bf16" generate --weights "$ref/${model}_tiny.loud.safetensors" --seed 1 \
            --temperature 1 --prompt-ids 1,2,3 --quiet $([ $run = first ] || echo $run) \
            > "$work/$model$run.text" 2> "$work/check.log"
    done
    check "$model in bf16: 61 tokens" eval "[ \$(wc -w < '$work/${model}first.text') = 61 ]"
    check "$model in bf16: the same with --no-graph" cmp "$work/${model}first.text" "$work/$model--no-graph.text"
done

planned() {
    "$made/wide" info --time --json > "$work/info.json" || return
    tr ',{}' '\n\n\n' < "$work/info.json" | tr -d '" ' | awk -F: '
        $1 == "planned_bytes" { planned = $2 } $1 == "measured_bytes" { measured = $2 }
        END { print planned, measured; d = (measured - planned) / planned; if (d < 0) d = -d
              exit !(planned > 200e6 && d <= 0.02) }'
}
check "wide: measured memory within 2 % of the plan" planned

resumed() {
    curve mnist_cnn whole 40 && curve mnist_cnn halves 20 --save-every 20 &&
        cp -r "$work/halves.out" "$work/first.out" &&
        "$made/mnist_cnn" train --data "$images" --steps 40 --quiet --resume="$work/first.out" \
            --out "$work/second.out" && cmp "$work/whole.out/model.safetensors" "$work/second.out/model.safetensors"
}
check "mnist_cnn: resumed, same weights" resumed

check "mnist_cnn: a rate that overflows ends with exit 6" exits 6 "$made/mnist_cnn" train \
    --data "$images" --steps 50 --lr 1e30 --quiet
check "mnist_cnn: and names a step" says "the weights are those of the step before" "$made/mnist_cnn" \
    train --data "$images" --steps 50 --lr 1e30 --quiet
check "mnist_cnn writes a trace" "$made/mnist_cnn" train --data "$images" --steps 30 --quiet --trace "$work/trace.json"
check "the trace holds kernels" grep -q '"ph":"X"' "$work/trace.json"

# checked TOOL MODEL OPTION...: a few steps under compute-sanitizer.
checked() {
    local tool=$1 model=$2
    shift 2
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$made/$model" train --data "$images" --steps 2 --quiet "$@"
}
if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck; do
        for model in mnist_mlp mnist_cnn convs.tf32; do
            check "$model: $tool finds nothing" checked $tool $model --no-graph
        done
    done
    for model in many blocks functions products; do
        check "$model: memcheck finds nothing" checked memcheck $model --no-graph
    done
fi
finish
