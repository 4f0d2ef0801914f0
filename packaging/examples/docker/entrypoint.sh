#!/bin/sh
# Makes the rules by which the server's replies come in, then becomes the proxy. They belong to the
# container's network and go with it.
#   TARGET  the server, such as 10.5.5.2:9000
#   MARK    any number that nothing else here uses
# Arguments are those of `peername proxy`.
set -eu

: "${TARGET:?name the server: TARGET=10.5.5.2:9000}"
: "${MARK:=123}"

peername routes add --mark "$MARK" --target-v4 "$TARGET" --protocol both
exec peername proxy --mark "$MARK" --target-v4 "$TARGET" "$@"
