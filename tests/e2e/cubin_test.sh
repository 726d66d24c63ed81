#!/usr/bin/env bash
# cubin_test.sh - every kernel of every model becomes device code for three architectures and PTX,
# without a GPU; the same bytes every time, from the cache or not.
set -u
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
export XDG_CACHE_HOME=$BUILD/cubin_cache
out=$BUILD/cubin_out bad=0 compiled=0
rm -rf "$XDG_CACHE_HOME" "$out"
mkdir -p "$out" "$XDG_CACHE_HOME"
fail() { echo "$1"; bad=1; }

model=models/mnist_mlp.it
"$INFINIC" --target=cuda "$model" -o "$out/a" 2> "$out/log"
if [ $? -eq 5 ] && grep -q 'is not on this machine' "$out/log"; then
    grep -q 'looked for libnvrtc.so.13' "$out/log" || fail 'the message does not say what was looked for'
    [ $bad -eq 0 ] && { cat "$out/log"; exit 77; }
    exit 1
fi

# One model for every architecture, one for two, the others for one; all for all in the long run.
for model in models/*.it tests/e2e/models/*.it; do
    archs=sm_80,sm_90a,sm_100a
    [ -n "${INFINIC_LONG-}" ] || case $model in models/mnist_cnn.it) ;; models/gpt2.it) archs=sm_80,sm_90a ;; *) archs=sm_90a ;; esac
    "$INFINIC" --target=cpu --emit=ir "$model" > /dev/null 2>&1 || continue # not in this version
    for fuse in "" $([ $model = tests/e2e/models/many.it ] && echo --no-fuse); do
        "$INFINIC" --target=cuda --arch=$archs $fuse "$model" -o "$out/program" \
            2> "$out/log" || { fail "$model $fuse"; head -20 "$out/log"; }
        compiled=$((compiled + 1))
    done
done
for model in models/mnist_cnn.it tests/e2e/models/convs.it; do
    "$INFINIC" --target=cuda --arch=sm_80,sm_90a -D train.dtype=tf32 "$model" -o "$out/program" \
        2> "$out/log" || { fail "$model in tf32"; head -20 "$out/log"; }
    compiled=$((compiled + 1))
done
[ $compiled -gt 2 ] || fail 'hardly any model was compiled'

# The runtime's own kernels are text until a driver compiles them.
if command -v ptxas > /dev/null; then
    sed -n 's/^ *"\(.*\)\\n";\{0,1\}$/\1/p' runtime/cuda_glue.c > "$out/glue.ptx"
    [ "$(grep -c '\.entry' "$out/glue.ptx")" -ge 5 ] || fail 'hardly any kernel of the runtime was found'
    for arch in sm_80 sm_90a; do
        ptxas -arch=$arch "$out/glue.ptx" -o "$out/glue" 2> "$out/log" || { fail "the runtime's kernels for $arch"; head -20 "$out/log"; }
    done
fi

# From the cache, and from an empty one on one processor: equal bytes.
model=models/gpt2.it
"$INFINIC" --target=cuda "$model" -o "$out/a" || fail "$model"
"$INFINIC" --target=cuda "$model" -o "$out/b" || fail "$model"
cmp "$out/a" "$out/b" || fail 'the cache changes the program'
rm -rf "$XDG_CACHE_HOME"
TIMEFORMAT=%U
seconds=$({ time taskset -c 0 "$INFINIC" -v --target=cuda "$model" -o "$out/b" 2> "$out/log"; } 2>&1) || fail "$model"
grep -q '^sm_90a, part 2 of [2-8]: NVRTC' "$out/log" || fail 'all kernels are compiled together'
cmp "$out/a" "$out/b" || fail 'two builds differ'
awk -v s="$seconds" 'BEGIN { exit !(s < 15) }' || fail "compiling takes $seconds seconds of processor time"
find "$XDG_CACHE_HOME" -name '*.??????' | grep -q . && fail 'an unfinished folder is left in the cache'

# A cache that cannot be written does no harm; an unknown architecture is named.
XDG_CACHE_HOME=/proc/none "$INFINIC" --target=cuda models/mnist_mlp.it -o "$out/b" || fail 'no cache'
"$INFINIC" --target=cuda --arch=sm_12 models/mnist_mlp.it -o "$out/c" 2> "$out/log"
[ $? -eq 5 ] || fail 'sm_12: exit code'
grep -q "does not know the architecture 'sm_12'; it has sm_" "$out/log" || fail 'sm_12: message'
[ ! -e "$out/c" ] || fail 'sm_12: a file was written'

rm -rf "$out" "$XDG_CACHE_HOME"
echo "$compiled programs compiled; $model cold: $seconds s of processor time"
exit $bad
