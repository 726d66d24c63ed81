#!/usr/bin/env bash
# compile.sh - how long compiling takes: the CNN, and 500 repeated blocks against 5.
#
# usage: tests/bench/compile.sh [INFINIC]      (default: the release build's)
#
# Takes turns, five rounds, and prints the medians in seconds of wall time, and their ratio.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
infinic=${1:-build/release/infinic}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

seconds() {   # COMMAND...: its wall time
    local start=$EPOCHREALTIME
    "$@" > /dev/null
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", b - a }'
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

for _ in 1 2 3 4 5; do
    seconds "$infinic" models/mnist_cnn.it --target=cpu -o "$work/cnn" >> "$work/cnn.s"
    for n in 5 500; do
        seconds "$infinic" tests/e2e/models/blocks.it --target=cpu -D n=$n -o "$work/blocks" >> "$work/$n.s"
    done
done
cnn=$(median "$work/cnn.s") few=$(median "$work/5.s") many=$(median "$work/500.s")
echo "mnist_cnn.it    $cnn s"
echo "5 blocks        $few s"
echo "500 blocks      $many s"
awk -v a="$many" -v b="$few" 'BEGIN { printf "500 against 5   %.2f times\n", a / b }'
