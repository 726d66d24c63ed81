#!/usr/bin/env bash
# The stand-in for NCCL (shim/one_gpu_nccl.c) behind the fake driver: processes that share a device
# get right bits from every function, in a stream's order and in graphs that are replayed, whatever
# fits into a box at a time. On a GPU: the same program, and cuda_pipeline_test.sh.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
folder=$BUILD/tests/one_gpu fake=$BUILD/tests/fake
[ -e "$fake/libcuda.so.1" ] || { echo 'skipped: built without cmocka, so without the fake driver'; exit 77; }
export LD_LIBRARY_PATH=$folder:$fake

# shared RANKS ELEMENTS [BOX]: all eight cases.
shared() {
    ONE_GPU_BOX=${3:-} timeout 120 "$folder/one_gpu_try" "$1" "$2" > "$work/try.log" &&
        [ "$(grep -c '^ok' "$work/try.log")" = 8 ] || { cat "$work/try.log"; return 1; }
}
check "one rank" shared 1 1000
check "two ranks" shared 2 1001
check "two ranks, small boxes" shared 2 1001 512
check "three ranks, one element" shared 3 1
check "four ranks, small boxes" shared 4 999 1024
check "seventeen ranks are refused" says "1 to 16 ranks" "$folder/one_gpu_try" 17 1
check "a sum where the other rank scatters is refused" says "a sum of 4" "$folder/one_gpu_try" apart
fails() {
    ONE_GPU_FAIL=1:5 timeout 20 "$folder/one_gpu_try" 2 10 > "$work/try.log"
    [ $? = 5 ] && grep -q "rank 1: .*: unhandled cuda error: .*was to fail" "$work/try.log" || { cat "$work/try.log"; return 1; }
}
check "a call fails when it was to" fails
for how in exit abort; do
    check "a rank that is gone: $how" timeout 20 "$folder/one_gpu_try" gone $how
done
finish
