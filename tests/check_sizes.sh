#!/usr/bin/env bash
# check_sizes.sh - limits that keep the code readable: files of at most 700 lines, functions of at
# most 70, lines of at most 100 columns (tables and grammar exempt), a README.md in every folder,
# no words for later.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bad=0
say() { echo "$1"; bad=1; }

mapfile -t files < <(find frontend ir passes codegen runtime tests -name '*.[chly]' -o -name '*.def' | sort)
[ ${#files[@]} -gt 0 ] || say 'found no source file: is this the repository?'
while read -r problem; do say "$problem"; done < <(LC_ALL=C.UTF-8 awk '
    function width(s) { gsub(/[\x80-\xbf]/, "", s); return length(s) }
    FNR == 1 { if (last && n > 700) print last ": " n " lines, at most 700"; last = FILENAME; start = 0 }
    { n = FNR }
    FILENAME ~ /\.[ch]$/ && width($0) > 100 { print FILENAME ":" FNR ": " width($0) " columns, at most 100" }
    /TODO|FIXME/ { print FILENAME ":" FNR ": say NEEDSWORK: and why it matters, or do it" }
    FILENAME !~ /\.[ch]$/ { next }
    /^[A-Za-z_].*\) \{$/ || (/^[ ].*\) \{$/ && signature) { start = FNR; name = $0 }
    { signature = /^[A-Za-z_][^;={}]*\(/ && !/[;{}]$/ || (signature && !/[;{}]$/) }
    /^}/ { if (start && FNR - start + 1 > 70)
               print FILENAME ":" start ": function of " FNR - start + 1 " lines, at most 70"
           start = 0 }
    END { if (n > 700) print last ": " n " lines, at most 700" }' "${files[@]}")
while read -r folder; do
    [ -e "$folder/README.md" ] || say "$folder: no README.md"
done < <(printf 'models\ntests/bench\ntests/reference\ntests\n'; find frontend ir passes codegen runtime -maxdepth 0)
echo "${#files[@]} files checked"
exit $bad
