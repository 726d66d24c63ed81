#!/usr/bin/env bash
# check_includes.sh - who may include whom (the house's one direction).
#
#   frontend -> ir <- passes;  codegen -> ir and runtime/plan.h;  runtime -> nothing outside itself;
#   frontend/main.c alone sees every compiler room.  Generated code includes only runtime/plan.h.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bad=0
say() { echo "$1"; bad=1; }

declare -A may=(
    [ir]='^ir/'
    [passes]='^(passes|ir)/'
    [frontend]='^(frontend|ir)/'
    [codegen]='^(codegen|ir)/|^runtime/plan\.h$'
    [runtime]='^runtime/'
    [main]='^(frontend|ir|passes|codegen)/|^runtime/plan\.h$'
)
files=0
for room in ir passes frontend codegen runtime; do
    while IFS=: read -r file line text; do
        header=${text#*\"} header=${header%%\"*}
        rule=$room
        [ "$file" != frontend/main.c ] || rule=main
        [[ $header =~ ${may[$rule]} ]] || say "$file:$line: $room may not include \"$header\""
        [ -e "$header" ] || [[ $header =~ ^frontend/(lexer|grammar)\.h$ ]] ||
            say "$file:$line: no file \"$header\"; includes are written from the repository's root"
        files=$((files + 1))
    done < <(find "$room" -name '*.[chly]' -o -name '*.def' -o -name '*.tmpl' | sort |
        xargs -r grep -n -H -E '^[[:space:]]*#[[:space:]]*include[[:space:]]*"')
done
while IFS=: read -r file line text; do
    say "$file:$line: generated code may include only runtime/plan.h: $text"
done < <(grep -n -H -E '"[^"]*#include \\"' codegen/*.c 2> /dev/null | grep -v -E '#include \\"runtime/plan\.h\\"')
[ "$files" -gt 0 ] || say 'found no include at all: is this the repository?'
echo "$files includes checked"
exit $bad
