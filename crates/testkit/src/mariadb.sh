# Owns one MariaDB for a test process: makes its files and starts it, and when standard input ends, for whatever reason
# (the test ended, panicked or was killed), stops the server and removes its folder.
# $1: the folder; $2: the port. The server's process ID is answered. With certificate.pem and key.pem in the folder it offers TLS.
trap : PIPE # a test that is gone before it hears of the server does not end this
PATH="$PATH:/usr/sbin:/usr/local/sbin"
user=
# MariaDB refuses to run as root, and becomes another user itself.
if [ "$(id -u)" = 0 ]; then
    user=--user=$(id -un mysql 2>/dev/null || echo nobody)
    chown "${user#--user=}" "$1"
fi
# A server that starts removes the temporary tables that it finds, those of others in the same folder too.
export TMPDIR="$1"
mariadb-install-db --no-defaults --datadir="$1/data" \
    --auth-root-authentication-method=normal --skip-test-db $user >>"$1/log" 2>&1 || exit 1
begin() {
    folder=$1 port=$2
    set --
    if [ -e "$folder/key.pem" ]; then
        set -- --ssl-cert="$folder/certificate.pem" --ssl-key="$folder/key.pem"
    fi
    mariadbd --no-defaults --datadir="$folder/data" --socket="$folder/socket" --pid-file="$folder/pid" --port="$port" \
        --bind-address=127.0.0.1 --skip-name-resolve --innodb-flush-log-at-trx-commit=0 --local-infile=1 "$@" $user \
        >>"$folder/log" 2>&1 </dev/null &
    pid=$!
    echo "$pid"
}
begin "$1" "$2"
# A line asks for the server anew, once it was killed.
while read -r _; do begin "$1" "$2"; done
# At once: one that has only just been started does not hear a request, and nothing of it is kept.
kill -KILL "$pid" 2>/dev/null
wait "$pid"
rm -rf "$1"
