#!/usr/bin/env bash
# What a person at the command line meets: names with shell characters, missing data, fixed
# settings, signals, full disks, exit codes.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_images
model=models/mnist_mlp.it

# No file name is ever a command.
for name in 'model;touch x' '$(touch x)' 'a b' "it's" '-dash' '`touch x`' 'a"b'; do
    cp $model "$work/$name.it"
    check "compiles '$name.it'" eval '(cd "$work" && "$INFINIC" -o "./$name.out" -- "$name.it")'
    check "'$name.out' runs" eval '(cd "$work" && "./$name.out" params)'
done
check "no side effect" test ! -e "$work/x"

check "compiles" compile $model "$work/mlp"
cp "$INFINIC" "$work/infinic-alone"
repo=$PWD
check "infinic works from another folder" eval '(cd "$work" && ./infinic-alone "$repo/$model" -o moved)'
check "no compiler is a named error" says "no C compiler" env CC=no-such-cc "$INFINIC" $model -o "$work/none"
check "no compiler exits with 5" exits 5 env CC=no-such-cc "$INFINIC" $model -o "$work/none"
check "an output folder that is missing exits with 5" exits 5 "$INFINIC" $model -o "$work/no/such/folder"
check "a full disk exits with 5" exits 5 "$INFINIC" $model -o /dev/full
check "missing data exits with 4" exits 4 "$work/mlp" train --data "$work/nowhere"
check "an unknown flag exits with 2" exits 2 "$work/mlp" train --lrr 1
check "and names the nearest" says "lr" "$work/mlp" train --lrr 1
check "a fixed setting says how to rebuild" says "-D train.B=8" "$work/mlp" train --B 8
check "help goes to stdout" eval '"$work/mlp" train --help 2> /dev/null | grep -q -- --epochs'
check "non-finite numbers exit with 6" exits 6 "$work/mlp" train --data "$images" --lr 1e38 --steps 50 --quiet

# interrupted SIGNAL: ends a run by a signal once it trains; exit 75, weights saved.
interrupted() {
    rm -rf "$work/run" "$work/run.jsonl"
    "$work/mlp" train --data "$images" --epochs 1000 --out "$work/run" --metrics "$work/run.jsonl" --quiet &
    local pid=$! code
    for _ in $(seq 200); do
        grep -q '"event": *"step"' "$work/run.jsonl" 2> /dev/null && break
        sleep 0.05
    done
    kill -s "$1" $pid
    wait $pid
    code=$?
    find "$work/run" -name model.safetensors | grep -q . && [ $code = 75 ] || { echo "exit code $code"; return 1; }
}
check "SIGTERM saves and exits with 75" interrupted TERM
check "SIGINT saves and exits with 75" interrupted INT
check "metrics to a full disk exit with 5" exits 5 "$work/mlp" train --data "$images" --steps 2000 --metrics /dev/full --quiet
finish
