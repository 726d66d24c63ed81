# What the backward programs of a plan launch: kernels by name, a repeat in parentheses.
function number(line, key) {
    match(line, "\\." key " = [0-9]+")
    return substr(line, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0
}
/^static const/ { table = $4 }
table ~ /^kernels/ && match($0, /"k_[a-z0-9_]*"/) { name[kernels++] = substr($0, RSTART + 3, RLENGTH - 9) }
table ~ /^steps/ && /\.kind/ { step[steps++] = $0 }
table ~ /^chunks/ && /^ *\{"(backward|input|weight)/ {
    gsub(/[{},"]/, "")
    line = $1 ":"
    end = -1
    for (i = $2; i < $3; i++) {
        if (i == end) line = line " )"
        if (step[i] ~ /STEP_REPEAT/) {
            line = line " ("
            end = i + 1 + number(step[i], "nbody")
        } else
            line = line " " name[number(step[i], "kernel")]
    }
    print line (end == $3 ? " )" : "")
}
