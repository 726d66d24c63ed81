#!/usr/bin/env bash
# run.sh - run text tests, or rewrite what they expect.
#
# usage: tests/run.sh [--update] [-v] [FILE|FOLDER]...      (default: every folder of tests/)
#
# A text test is a file that says what it is for, what to run, and what that prints:
#
#     # A broadcast in the forward pass is one sum in the backward pass.
#     # RUN: infinic %s --only=autodiff
#     # EXIT: 1                  (only where the exit code is not 0)
#     graph f(...) { ... }
#     #> the output: stdout and stderr together, one `#>` line for each line
#
# The command runs in the test's folder and %s is the file's name there, so that messages hold no
# path of this machine; %T is a private empty folder. Several RUN lines run in order and their
# outputs follow each other; EXIT is the last one's code. %i instead of %s is a copy of the file
# without its comment lines, for input that must not hold any. The program is $INFINIC, by default
# the release build's.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
update=0 verbose=0 args=()
for a in "$@"; do
    case $a in
    --update) update=1 ;;
    -v) verbose=1 ;;
    -h | --help)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *) args+=("$a") ;;
    esac
done
[ ${#args[@]} -gt 0 ] || args=("$here")
infinic=${INFINIC:-$here/../build/release/infinic}
[ -x "$infinic" ] || { echo "run.sh: no program '$infinic'; build it or set INFINIC" >&2; exit 2; }
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" && ln -s "$(realpath "$infinic")" "$work/bin/infinic"
PATH=$work/bin:$PATH
export LC_ALL=C.UTF-8

list() {   # the files of the arguments, one a line
    local a
    for a in "${args[@]}"; do
        if [ -d "$a" ]; then find "$a" -type f -name '*.i[tr]'; else echo "$a"; fi
    done
}
mapfile -t files < <(list | xargs -r -d '\n' realpath |
    xargs -r -d '\n' grep -l -a -E '^# RUN: ' | sort)

# Reads $file: sets runs[], want_exit and the expected text in $want.
read_test() {
    runs=() want_exit=0 want='' purpose=''
    local line lines
    mapfile -t lines < "$file" 2>/dev/null
    for line in "${lines[@]}"; do
        case $line in
        '#> '*) want+=${line:3}$'\n' ;;
        '#>') want+=$'\n' ;;
        '# RUN: '*) runs+=("${line:7}") ;;
        '# EXIT: '*) want_exit=${line:8} ;;
        '# '*) [ -n "$purpose" ] || purpose=${line:2} ;;
        esac
    done
}

# Copies a test, with an EXIT line after its last RUN line unless CODE is 0.
with_exit() {
    awk -v code="$1" '/^# RUN: / { last = NR } { line[NR] = $0 }
        END { for (i = 1; i <= NR; i++) {
                  print line[i]
                  if (i == last && code) print "# EXIT: " code } }'
}

passed=0 failed=0 updated=0
for file in "${files[@]}"; do
    read_test
    name=${file#"$here"/}
    problem=
    [ -n "$purpose" ] || problem='the first line must say in one sentence what the test is for'
    dir=${file%/*} base=${file##*/} n=0 code=0
    rm -rf "$work/out" "$work/T" && mkdir "$work/T"
    for run in "${runs[@]}"; do
        if [[ $run == *%i* ]]; then
            grep -v -a '^#' "$file" > "$work/T/$base"
            run=${run//%i/$work/T/$base}
        fi
        run=${run//%s/$base}
        run=${run//%T/$work/T}
        (cd "$dir" && eval "$run") >> "$work/out" 2>&1 < /dev/null
        code=$?
    done
    got=$(tr -d '\000' < "$work/out"; echo .)   # keeps final newlines
    got=${got%.}
    got=${got//$work\/T\//}
    [ -z "$got" ] || [ "${got: -1}" = $'\n' ] || got+=$'\n'
    [ "$code" -lt 126 ] || problem="'${runs[-1]}' ended with code $code"
    if [ -z "$problem" ] && [ "$update" = 1 ]; then
        if [ "$got" != "$want" ] || [ "$code" != "$want_exit" ]; then
            {
                grep -v -a -E '^#>|^# EXIT: ' "$file" | with_exit "$code"
                [ -z "$got" ] || printf '%s' "$got" | sed 's/^/#> /; s/^#> $/#>/'
            } > "$work/new" && cat "$work/new" > "$file"
            updated=$((updated + 1))
            echo "updated: $name"
        fi
        passed=$((passed + 1))
        continue
    fi
    if [ -z "$problem" ] && [ "$code" != "$want_exit" ]; then
        problem="exit code $code, expected $want_exit"
    fi
    if [ -z "$problem" ] && [ "$got" = "$want" ]; then
        passed=$((passed + 1))
        [ "$verbose" = 0 ] || echo "ok: $name"
    else
        failed=$((failed + 1))
        echo "FAILED: $name: ${problem:-output differs} (- expected, + got)"
        printf '%s' "$want" > "$work/want"
        printf '%s' "$got" > "$work/got"
        diff -u "$work/want" "$work/got" | tail -n +3
    fi
done
[ "$update" = 0 ] || echo "$updated of ${#files[@]} tests rewritten"
[ ${#files[@]} -gt 0 ] || { echo "run.sh: no tests in ${args[*]}" >&2; exit 2; }
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
