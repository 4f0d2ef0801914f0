#!/bin/sh
# Opens both doors of README (`exec` and `jail`) as an ordinary user, with the peername in PATH and a busybox in /opt.
# Prints a line for each expectation. Arguments: the expected path of the program, and the mode of exec.
busybox=/opt/busybox
check() {
    what=$1
    shift
    if "$@"; then echo "ok   $what"; else echo "FAIL $what: $*"; fi
}
# Waits up to ten seconds for a command to succeed.
wait_until() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        "$@" && return
        sleep 0.5
    done
    return 1
}
fetch() {
    printf 'PROXY TCP4 203.0.113.7 127.0.0.1 56324 8080\r\nGET /page HTTP/1.0\r\n\r\n' |
        $busybox nc 127.0.0.1 8080 2>/dev/null | grep -q 'hello'
}
in_jail() { peername jail --allow localhost:8081 -- $busybox wget -q -O - "$1" 2>"$work/denial"; }
is_refused() { ! in_jail "$1" >"$work/answer"; }

work=$(mktemp -d)
echo hello >"$work/page"
check "the program is the installed one" test "$(command -v peername)" = "$1"
check "the program runs" peername --version

peername exec --mode "$2" --trust loopback --ports 8080 -- \
    $busybox httpd -f -vv -p 127.0.0.1:8080 -h "$work" >"$work/log" 2>&1 &
check "a server behind exec answers" wait_until fetch
check "its own log has the client" grep -q '^203.0.113.7:56324: url:/page' "$work/log"
cat "$work/log" >&2

$busybox httpd -f -p 127.0.0.1:8081 -h "$work" &
$busybox httpd -f -p 127.0.0.1:8082 -h "$work" &
check "a jail reaches what is allowed" wait_until in_jail http://localhost:8081/page
check "another server is there" wait_until $busybox wget -q -O /dev/null http://127.0.0.1:8082/page
check "a jail does not reach it" is_refused http://localhost:8082/page
check "a jail asks for no other host" is_refused http://example.org/
# The jail's first process exits with the program. The lines about denials may come a moment later (docs/jail.md).
check "it says what would allow it" wait_until grep -q -- '--allow example.org' "$work/denial"
cat "$work/denial" >&2

# Starts a jail where user namespaces are forbidden: in a user namespace below which no other can be made.
without_namespaces() {
    $busybox unshare -U -r sh -c 'echo 0 >/proc/sys/user/max_user_namespaces
        exec peername jail --allow localhost:8081 -- true' 2>"$work/refusal"
}
is_refused_in_short() { ! without_namespaces && test "$(wc -l <"$work/refusal")" -le 3; }
check "a jail without user namespaces is refused in at most three lines" is_refused_in_short
check "it says what allows them" grep -q 'sysctl -w user.max_user_namespaces' "$work/refusal"
cat "$work/refusal" >&2
peername forward --listen 127.0.0.1:8081 --to 127.0.0.1:8080 2>"$work/port"
check "a port that is in use is named" grep -q '127.0.0.1:8081.*Address.*in use' "$work/port"
check "in at most three lines" test "$(wc -l <"$work/port")" -le 3
cat "$work/port" >&2
