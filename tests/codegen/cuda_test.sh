#!/usr/bin/env bash
# cuda_test.sh - the kernel tests once more for CUDA: the same cases, lowered and printed as CUDA C,
# compiled as C++ and run by an emulation of blocks and threads (cuda_emulate.h). Against the f64
# evaluator, fused against unfused bit for bit, with blocks in different orders.
set -u
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
command -v c++ > /dev/null || { echo 'no C++ compiler (c++): emulated kernels are not tested'; exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/kernel_tests.sh"
export INFINIC_TEST_TARGET=cuda
bad=0 run=0
for test in "${kernel_tests[@]}" random_graphs; do
    program=$BUILD/tests/codegen_$test
    [ -x "$program" ] || continue
    run=$((run + 1))
    "$program" > "$BUILD/cuda_test.log" 2>&1 && continue
    echo "codegen_$test on CUDA:"
    grep -v -E '\[ +(OK|RUN) +\]' "$BUILD/cuda_test.log" | tail -40
    bad=1
done
rm -f "$BUILD/cuda_test.log"
[ $run -gt 0 ] || { echo 'no kernel test was built (cmocka is missing)'; exit 77; }
echo "$run tests run for CUDA"
exit $bad
