#!/bin/sh
# Adds the rules that route the server's replies to the proxy, then executes the proxy. The rules belong to the container's
# network namespace and are destroyed with it.
#   TARGET  the server, such as 10.5.5.2:9000
#   MARK    any number that nothing else in this namespace uses
# The arguments are passed to `peername proxy`.
set -eu

: "${TARGET:?name the server: TARGET=10.5.5.2:9000}"
: "${MARK:=123}"

peername routes add --mark "$MARK" --target-v4 "$TARGET" --protocol both
exec peername proxy --mark "$MARK" --target-v4 "$TARGET" "$@"
