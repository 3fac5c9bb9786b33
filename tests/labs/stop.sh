# For the other scripts here, which source it.

# Whether a process is there, and not one that ended and that nobody has asked for yet.
runs() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }

# Ends the process whose number a file holds, where there is such a file, and removes that.
stop() {
    local id
    [ -s "$1" ] || return 0
    id=$(cat "$1")
    kill "$id" 2> /dev/null || true
    for _ in $(seq 50); do
        runs "$id" || break
        sleep 0.1
    done
    kill -9 "$id" 2> /dev/null || true
    rm -f "$1"
}
