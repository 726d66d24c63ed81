# lib.sh - what the end-to-end scripts share: sourced, not run.
#
# Sets $work (a private folder, removed at exit), $images (Fashion-MNIST as IDX files) and the
# helpers below. A script ends with `finish`.
set -u
[ -z "${PREBUILT:-}" ] || INFINIC=${INFINIC:-none}
: "${INFINIC:?names the program under test}"
export LC_ALL=C.UTF-8
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
images=${INFINIC_IMAGES:-/usr/share/datasets/fashion-mnist}
checks=0 failures=0

# Skips the whole script where the data set is not installed.
need_images() {
    [ -e "$images/train-images-idx3-ubyte.gz" ] && return
    echo "skipped: no images in $images (Debian's dataset-fashion-mnist)"
    exit 77
}

# Skips the whole script where programs of several ranks cannot be built or started, and in the
# sanitizer build.
need_ranks() {
    [ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
    [ -x "$BUILD/tests/mpi/ranks" ] || { echo "skipped: built without MPI (Debian's libopenmpi-dev)"; exit 77; }
    command -v mpirun > /dev/null || { echo "skipped: no mpirun (Debian's openmpi-bin)"; exit 77; }
}

# From here on cc optimizes less: programs are there in half the time, with the same meaning.
light_cc() {
    printf '#!/bin/sh\nexec cc "$@" -O1\n' > "$work/cc" && chmod +x "$work/cc"
    export CC=$work/cc
}
# Sanitizers watch what makes kernels, not kernels: those of the release build are the real ones.
case ${BUILD-} in */asan) [ -n "${INFINIC_LONG-}" ] || light_cc ;; esac

# check WHAT COMMAND...: the command must succeed.
check() {
    local what=$1
    shift
    checks=$((checks + 1))
    if "$@" > "$work/check.log" 2>&1; then
        echo "ok: $what"
    else
        failures=$((failures + 1))
        echo "FAILED: $what: $*"
        tail -n 20 "$work/check.log"
    fi
}

# exits CODE COMMAND...: runs the command and compares its exit code.
exits() {
    local want=$1 code
    shift
    "$@"
    code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, expected $want"; return 1; }
}

# says TEXT COMMAND...: the command's output (both streams) must hold the text.
says() {
    local text=$1
    shift
    "$@" > "$work/says.log" 2>&1
    grep -q -F -- "$text" "$work/says.log" || { cat "$work/says.log"; echo "does not say: $text"; return 1; }
}

# compile MODEL OUTPUT [OPTION...]
compile() {
    local model=$1 output=$2
    shift 2
    "$INFINIC" "$model" -o "$output" --target=cpu "$@"
}

# numbers METRICS: steps and evaluations without what is measured.
numbers() {
    sed -n '/"event": *"\(step\|eval\)"/s/, *"\(ms\|[a-z]*_per_s\|mfu\|mem_[a-z]*\)": *[^,}]*//gp' "$1"
}

# same_run OUT REFERENCE: two runs of twenty steps in $work have every number and every file alike.
same_run() {
    local file
    [ "$(wc -l < "$work/$1/numbers")" -ge 20 ] || { echo "fewer than 20 steps"; return 1; }
    diff "$work/$1/numbers" "$work/$2/numbers" || return 1
    for file in grads.safetensors run/model.safetensors run/step-000000{10,20}/{model,optimizer}.safetensors; do
        cmp "$work/$1/$file" "$work/$2/$file" || return 1
    done
}

# losses METRICS: the loss of each step, one a line, as written.
losses() {
    sed -n '/"event": *"step"/s/.*"loss": *\([^,}]*\).*/\1/p' "$1"
}

# within REFERENCE METRICS STEPS TOLERANCE: absolute differences of losses.
within() {
    losses "$2" > "$work/losses"
    paste "$1" "$work/losses" | awk -v n="$3" -v tolerance="$4" '
        NR <= n { if ($2 == "") exit; d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; seen = NR }
        END { printf "largest difference %.3g over %d steps (allowed %g)\n", worst, seen, tolerance
              exit !(seen == n && worst <= tolerance) }'
}

# near_output OUTPUT OUTPUT TOLERANCE [STEPS]: losses of the first steps, or of twenty, in $work/OUTPUT.jsonl.
near_output() {
    losses "$work/$2.jsonl" > "$work/wanted"
    within "$work/wanted" "$work/$1.jsonl" "${4:-20}" "$3"
}

# same_output OUTPUT OUTPUT: losses, norms and weights, and first gradients where they are, are equal to the last bit.
same_output() {
    cmp <(losses "$work/$1.jsonl") <(losses "$work/$2.jsonl") && cmp "$work/$1.norms" "$work/$2.norms" &&
        { [ ! -e "$work/$2.grads" ] || cmp "$work/$1.grads" "$work/$2.grads"; } &&
        cmp "$work/$1.out/model.safetensors" "$work/$2.out/model.safetensors"
}

# need_programs: what cuda_build.sh makes, in the folder $made. With PREBUILT=FOLDER it was made elsewhere:
# then neither infinic nor the build folder is needed. Skips the whole script where no device answers.
need_programs() {
    made=${PREBUILT:-$work/made}
    [ -z "${PREBUILT:-}" ] || return 0
    need_images
    nvidia-smi -L > /dev/null 2>&1 || { echo 'skipped: no CUDA device: nvidia-smi finds none'; exit 77; }
    check "everything compiles" env INFINIC="$INFINIC" INFINIC_IMAGES="$images" \
        bash tests/e2e/cuda_build.sh "$made"
}

# find_ranks: how ranks run on the devices of this machine: many by NCCL with one each; else four, all
# on the first one, by the stand-in for NCCL (shim/one_gpu_nccl.c); else one. Sets `most` to how many.
find_ranks() {
    local stand_in=${PREBUILT:-${BUILD:-none}/tests}/one_gpu
    most=1 how='' with=()
    command -v mpirun > /dev/null || return 0
    most=$(nvidia-smi -L 2> /dev/null | wc -l)
    [ "$most" = 1 ] && [ -e "$stand_in/libnccl.so.2" ] || return 0
    most=4 how=', on one device by a stand-in for NCCL'
    with=(INFINIC_SHARE_DEVICES=1 "LD_LIBRARY_PATH=$(cd "$stand_in" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
}

# ranks COMMAND...: a function or a program whose processes are several ranks.
ranks() {
    ([ -z "$how" ] || export "${with[@]}" && "$@")
}

# killed_rank PROGRAM OPTION...: one of its ranks, in the middle of training; the others end within ten seconds
# and say which it was, into $work/killed.log.
killed_rank() {
    local program=$1 pid got victim log=$work/killed.log begin
    rm -f "$work/killed.jsonl"
    "$program" train "${@:2}" --quiet --steps 1000000 --metrics "$work/killed.jsonl" > "$log" 2>&1 &
    pid=$!
    until [ -s "$work/killed.jsonl" ] && [ "$(losses "$work/killed.jsonl" | wc -l)" -ge 3 ]; do
        kill -0 "$pid" || { cat "$log"; return 1; }
        sleep 0.05
    done
    victim=$(pgrep -f "^$program train" | grep -v "^$pid\$" | shuf -n 1)
    begin=$SECONDS
    kill -9 "$victim"
    wait "$pid"
    got=$?
    [ "$got" = 7 ] && [ $((SECONDS - begin)) -le 10 ] && grep -q "(process $victim) died at step" "$log" && return 0
    cat "$log"
    echo "exit code $got after $((SECONDS - begin)) s"
    return 1
}

. "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"

# greedy NAME PROGRAM [OPTION...]: every prompt of the reference NAME; a continuation may depart where
# the two best logits are closer than 1e-3.
greedy() {
    local name=$1 program=$2 prompt want gaps bad=0 prompts=0
    shift 2
    while IFS='|' read -r prompt want gaps; do
        prompts=$((prompts + 1))
        "$program" generate --weights "tests/reference/$name.loud.safetensors" --temperature 0 --quiet \
            --prompt-ids "$prompt" "$@" \
            > "$work/got" 2> "$work/log" || { cat "$work/log"; return 1; }
        awk -v want="$want" -v gaps="$gaps" '{
            n = split(want, w, " "); split(gaps, gap, " ")
            if (NF != n) { print NF " tokens instead of " n; exit 1 }
            for (i = 1; i <= n; i++)
                if ($i != w[i]) { print "token " i ": " $i " instead of " w[i] ", gap " gap[i]
                                  exit gap[i] > 1e-3 }
        }' "$work/got" || bad=$((bad + 1))
        grep -q "the context of 64 is full" "$work/log" || { echo "no notice"; bad=$((bad + 1)); }
    done < "tests/reference/$name.greedy.txt"
    echo "$prompts prompts, $bad wrong"
    [ "$prompts" = 10 ] && [ "$bad" = 0 ]
}

finish() {
    echo "$checks checks, $failures failed"
    [ "$failures" = 0 ] && [ "$checks" -gt 0 ]
    exit
}
