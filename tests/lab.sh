# Functions of the laboratories of batch systems: tests/slurm/lab.sh and tests/gridengine/lab.sh
# source this file.

set -uo pipefail
export LC_ALL=C
# Ports that `free_port` has given.
taken=()

lacks() { echo "$*" >&2; exit 3; }
die() { echo "lab.sh: $*" >&2; exit 1; }

# Prints the comment at the start of the script, from line 2 to the first line without a comment.
usage() { sed -n '2,${/^#/!q; s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

# The start time of a process, which together with its number is unique.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
alive() {
    [ -n "$2" ] && [ "$(began "$1")" = "$2" ] && ! grep -qs '^State:.[ZX]' "/proc/$1/status"
}

# Waits until a command succeeds, for a time in tenths of a second.
until_ok() { # tenths command...
    local i
    for ((i = 0; i < $1; i++)); do
        "${@:2}" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

# A free port below the system's range of ephemeral ports.
free_port() {
    local port hex
    for _ in {1..200}; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        hex=$(printf ':%04X ' "$port")
        case " ${taken[*]-} " in *" $port "*) continue ;; esac
        grep -qsi "^ *[0-9]*: [0-9A-F]*$hex" /proc/net/tcp /proc/net/tcp6 && continue
        taken+=("$port")
        return 0
    done
    die "no free port between 20000 and 32000"
}

# Stops the laboratory when the process LAB_PARENT ends. `stop` does not end this process: it ends
# once the file is gone that `stop` removes last.
follow_parent() { # file
    [ -n "${LAB_PARENT:-}" ] || return 0
    setsid "$0" watch "$dir" "$1" "$LAB_PARENT" "$(began "$LAB_PARENT")" </dev/null >/dev/null 2>&1 &
    disown
}

watch() { # file pid when-it-began
    while [ -e "$1" ]; do
        alive "$2" "$3" || { stop; rm -rf "$dir"; return; }
        sleep 1
    done
}
