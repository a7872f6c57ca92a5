# Owns one PostgreSQL for a test process: does what is asked on standard input, and when that ends, for whatever reason
# (the test ended, panicked or was killed), stops the server and removes its folder.
# $1: the folder of PostgreSQL's programs; $2: the cluster's folder (data, log). Each command is answered by one line.
pid=

# The signal is sent again and again: a server that has only just been started ignores it, as shells start it so.
stop() {
    [ -n "$pid" ] || return 0
    while kill "-$1" "$pid" && kill -CONT "$pid"; do sleep 0.2; done >/dev/null 2>&1 &
    again=$!
    wait "$pid"
    kill "$again"
    pid=
}

while read -r command rest; do
    case $command in
    start)
        stop QUIT
        LD_PRELOAD=$(ls "$2/slow_disk.so" 2>/dev/null) "$1/postgres" -D "$2/data" >>"$2/log" 2>&1 </dev/null &
        pid=$!
        echo "$pid"
        ;;
    stop)
        stop "$rest"
        echo stopped
        ;;
    freeze)
        [ -z "$pid" ] || kill -STOP "$pid"
        echo frozen
        ;;
    kill)
        # shellcheck disable=SC2086 # a list of process IDs
        [ -z "$pid" ] || kill -KILL "$pid" $rest
        [ -z "$pid" ] || wait "$pid"
        pid=
        echo killed
        ;;
    esac
done
stop QUIT
# A copy into the folder may still be going on when the test process was killed in the middle of it.
tries=100
until rm -rf "$2" && [ ! -e "$2" ]; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || break
    sleep 0.1
done
