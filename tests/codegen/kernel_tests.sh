# kernel_tests.sh - which programs here test kernels beside the evaluator (kernels.h, kernel_set.h),
# on every target: sourced, not run.
kernel_tests=(elementwise movement bf16 reduce matmul attention conv)
