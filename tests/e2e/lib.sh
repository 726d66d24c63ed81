# lib.sh - what the end-to-end scripts share: sourced, not run.
#
# Sets $work (a private folder, removed at exit), $images (Fashion-MNIST as IDX files) and the
# helpers below. A script ends with `finish`.
set -u
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

finish() {
    echo "$checks checks, $failures failed"
    [ "$failures" = 0 ] && [ "$checks" -gt 0 ]
    exit
}
