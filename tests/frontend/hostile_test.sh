#!/usr/bin/env bash
# Files that are no models: each gets a message and exit code 1, none ends the compiler by a signal.
set -u
work=$(mktemp -d "${BUILD:-/tmp}/hostile.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# expect CODE TEXT ARGUMENT...: infinic ends with CODE and its messages hold TEXT.
expect() {
    local code=$1 text=$2 got
    shift 2
    timeout 10 "$INFINIC" "$@" > "$work/out" 2>&1 < /dev/null
    got=$?
    if [ $got = "$code" ] && { [ -z "$text" ] || grep -q -F -- "$text" "$work/out"; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: infinic $*: exit code $got, wanted $code with '$text', got:"
        head -c 500 "$work/out"
    fi
}

model='dim B
model m(x: f32[B, 4], y: i32[B]) {
  fc: Linear(4, 3)
  return cross_entropy(fc(x), y)
}
train { B = 4; optimizer = sgd(lr = 0.1) }'
repeat() { head -c "$2" /dev/zero | tr '\0' "$1"; }

cd "$work" || exit 2
printf '%s\n' "$model" > good.it
printf '\xef\xbb\xbf%s\n' "$model" > bom.it
printf '%s' "$model" > no_newline.it
printf '%s\n' "$model" | sed 's/$/\r/' > crlf.it
printf '%s\n# \xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80\n' "$model" > utf8.it
for good in good bom no_newline crlf utf8; do expect 0 '' --check $good.it; done

printf 'dim B\0\n' > nul.it
printf 'd\0i\0m\0' > utf16.it
printf 'dim \xff\n' > bad_utf8.it
printf 'dim \xc0\x80\n' > overlong.it
printf 'dim \xed\xa0\x80\n' > surrogate.it
printf 'dim B\xc3' > cut.it
: > empty.it
printf '\n\n# nothing\n' > comment.it
expect 1 E027 --check nul.it
expect 1 UTF-16 --check utf16.it
for bad in bad_utf8 overlong surrogate cut; do expect 1 'not UTF-8' --check $bad.it; done
expect 1 'there is no model' --check empty.it
expect 1 'there is no model' --check comment.it

expect 1 'is a directory' --check .
expect 1 'is a device' --check /dev/zero
expect 1 'No such file' --check missing.it
expect 1 'Not a directory' --check good.it/inner.it
repeat '#' $((16 * 1024 * 1024 + 1)) > large.it
repeat '#' $((16 * 1024 * 1024)) > largest.it
expect 1 '16 MiB' --check large.it
expect 1 'there is no model' --check largest.it
(repeat 'a' 20000; echo ' { }') > long_name.it
expect 1 'longer than the limit of 4096' --check long_name.it
(printf 'config { a = "'; repeat 'b' 20000; echo '" }') > long_string.it
expect 1 'longer than the limit of 4096' --check long_string.it

nested() { printf 'config { a = '; repeat "$1" "$3"; printf 1; repeat "$2" "$3"; echo ' }'; }
nested '(' ')' 255 > nested_255.it
nested '(' ')' 300 > nested_300.it
nested '[' ']' 100000 > nested_many.it
expect 1 'there is no model' --check nested_255.it
expect 1 'deeper than the limit of 256' --check nested_300.it
expect 1 'deeper than the limit of 256' --check nested_many.it
for open in '-' 'not ' '1 + ' '2 ^ ' 'x |> ' '1 < ' 'f('; do
    (printf 'config { a = '; for _ in $(seq 20000); do printf '%s' "$open"; done; echo '1 }') > chain.it
    expect 1 'error[E0' --check chain.it
done
for part in '{' '}' '(' ')' '[' ']' '"' ':' ',' '|>' '->' 'if 1 {' 'scope a {' 'block A(' 'else' 'import'; do
    (for _ in $(seq 3000); do printf '%s\n' "$part"; done) > repeated.it
    expect 1 'error[E0' --check repeated.it
done
(echo 'model m() {'; for _ in $(seq 400000); do echo 'a=b'; done; echo '}') > many.it
expect 1 'syntax elements' --check many.it

# A program that would be huge when every block is unfolded.
(
    echo 'dim B'
    echo 'block L0(x: [B, 4]) -> [B, 4] { fc: Linear(4, 4); return fc(x) }'
    for i in $(seq 40); do
        echo "block L$i(x: [B, 4]) -> [B, 4] { a: L$((i - 1)); b: L$((i - 1)); return x |> a |> b |> a |> b }"
    done
    echo 'model m(x: f32[B, 4], y: i32[B]) { top: L40; return cross_entropy(top(x), y) }'
    echo 'train { B = 4; optimizer = sgd(lr = 0.1) }'
) > exponential.it
expect 1 E026 --check exponential.it
(
    echo 'dim B'
    echo 'block L0(x: [B, 4]) -> [B, 4] { return relu(x) }'
    for i in $(seq 200); do echo "block L$i(x: [B, 4]) -> [B, 4] { a: L$((i - 1)); return a(x) }"; done
    echo 'model m(x: f32[B, 4], y: i32[B]) { top: L200; return cross_entropy(top(x), y) }'
    echo 'train { B = 4; optimizer = sgd(lr = 0.1) }'
) > deep_blocks.it
expect 1 'nested deeper' --check deep_blocks.it

# Imports: cycles end, a file is read once.
printf 'import "b.it"\n%s\n' "$model" > a.it
printf 'import "a.it"\nimport "b.it"\n' > b.it
expect 0 '' --check a.it

# Names that a shell would read, and names that look like options.
cp good.it '$(id) ;"x".it'
cp good.it ./-o.it
expect 0 '' --check '$(id) ;"x".it'
expect 0 '' --check -- -o.it

# Every allocation failing in turn: one message, exit code 5, until none is left to fail.
n=0
while n=$((n + 1)); do
    INFINIC_FAIL_ALLOC=$n timeout 10 "$INFINIC" --check good.it > out 2>&1
    code=$?
    [ $code = 0 ] && break
    if [ $code != 5 ] || ! grep -q 'out of memory' out || [ $n -gt 500 ]; then
        echo "failed: allocation $n: exit code $code"
        failed=$((failed + 1))
        break
    fi
    passed=$((passed + 1))
done

# --check of the worst files stays below 2 s of processor time and 256 MB (ASan needs more).
if ! grep -q -a __asan_init "$INFINIC"; then
    for worst in largest many exponential; do
        (ulimit -v 262144 -t 2; "$INFINIC" --check $worst.it > out 2>&1)
        [ $? = 1 ] && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "failed: $worst.it within 2 s and 256 MB"; }
    done
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
