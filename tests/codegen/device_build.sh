#!/usr/bin/env bash
# Makes what device_test.sh needs, in a folder that can be carried to a machine with a device but
# without our tools:  BUILD=path tests/codegen/device_build.sh FOLDER
#
# The kernel tests, every kernel of theirs as a cubin (INFINIC_TEST_ARCH, sm_90a), the libraries.
set -eu
: "${BUILD:?names the build folder}"
out=$1
mkdir -p "$out/cubins" "$out/lib"
. "$(dirname "${BASH_SOURCE[0]}")/kernel_tests.sh"
for test in "${kernel_tests[@]}"; do
    strip -o "$out/codegen_$test" "$BUILD/tests/codegen_$test"
    code=0
    INFINIC_TEST_TARGET=device INFINIC_TEST_CUBINS=$out/cubins "$out/codegen_$test" > /dev/null 2>&1 || code=$?
    [ $code = 77 ] || [ $code = 0 ] || { echo "codegen_$test: exit code $code"; exit 1; }
done
ldd "$out/codegen_conv" | awk '/cmocka|xxhash|dnnl|OpenCL|gomp/ { print $3 }' | xargs -r cp -L -t "$out/lib"
