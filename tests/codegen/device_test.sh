#!/usr/bin/env bash
# The kernel tests once more on a real device: every operation's cases against the f64 evaluator,
# fused against unfused bit for bit, three runs alike, no byte written outside of an argument.
# Skipped where no device answers. With PREBUILT=FOLDER programs and cubins are those of
# device_build.sh, made elsewhere.
set -u
dir=${PREBUILT:-$BUILD/tests}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
skip() { echo "skipped: $1"; exit 77; }
nvidia-smi -L > /dev/null 2>&1 || skip 'no CUDA device: nvidia-smi finds none'
. "$(dirname "${BASH_SOURCE[0]}")/kernel_tests.sh"
export INFINIC_TEST_TARGET=device
if [ -n "${PREBUILT:-}" ]; then
    export INFINIC_TEST_CUBINS=$PREBUILT/cubins LD_LIBRARY_PATH=$PREBUILT/lib:${LD_LIBRARY_PATH:-}
fi
tests=()
for test in "${kernel_tests[@]}"; do
    [ -x "$dir/codegen_$test" ] || continue
    tests+=("$test")
    ("$dir/codegen_$test" > "$work/$test.log" 2>&1; echo $? > "$work/$test.code") &
done
wait
[ ${#tests[@]} -gt 0 ] || skip 'no kernel test was built (cmocka is missing)'
bad=0
for test in "${tests[@]}"; do
    code=$(cat "$work/$test.code")
    [ "$code" = 77 ] && skip "$(grep -m 1 'compiled only' "$work/$test.log")"
    [ "$code" = 0 ] && continue
    echo "codegen_$test on the device: exit code $code"
    grep -v -E '\[ +(OK|RUN) +\]' "$work/$test.log" | tail -40
    bad=1
done
echo "${#tests[@]} tests ran on the device"
exit $bad
