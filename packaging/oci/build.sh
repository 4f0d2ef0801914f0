#!/bin/bash
# Builds the container image from static binaries, without a daemon:
#
#   packaging/oci/build.sh OUT BINARY…     each for another platform, such as amd64 and arm64
#
# OUT is an archive of the OCI image layout, whose index lists an image for each binary:
#
#   skopeo copy --all oci-archive:OUT docker://REGISTRY/peername:VERSION       podman load --input OUT
#
# The same binaries, CA bundle and SOURCE_DATE_EPOCH (default: the last commit) make the same image. Root, or `buildah unshare`:
# the file's capabilities are an extended attribute that others can't set.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
# The roots that `intercept` verifies origins with. Mount another bundle over it, or use --extra-ca.
bundle=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}
# An ordinary user, by number: Kubernetes compares a name with nothing (runAsNonRoot).
user=65532

main() {
    local out=$1 binary
    shift
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
    revision=$(git -C "$root" rev-parse HEAD)
    epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
    work=$(mktemp -d)
    trap cleanup EXIT
    storage=(--root "$work/storage" --runroot "$work/run")
    buildah manifest create "${storage[@]}" peername >"$work/log"
    for binary; do
        add "$binary"
    done
    mkdir -p "$(dirname "$out")"
    buildah manifest push "${storage[@]}" --quiet --all peername "oci-archive:$out:$version" >>"$work/log"
    echo "$out: $version for $# platform(s), $(($(stat -c %s "$out") / 1024)) KiB"
}

# Adds the image of one binary to the index.
add() {
    local binary=$1 triple arch container mount
    case $(readelf --file-header "$binary" | sed -n 's/^ *Machine: *//p') in
        *X86-64*) arch=amd64 triple=x86_64-linux-gnu ;;
        AArch64) arch=arm64 triple=aarch64-linux-gnu ;;
        *) fail "$binary: neither x86-64 nor AArch64" ;;
    esac
    ! readelf --program-headers "$binary" | grep -q INTERP ||
        fail "$binary: dynamically linked, and nothing else is in the image: build it by make static"
    container=$(buildah from "${storage[@]}" --arch "$arch" scratch)
    mount=$(buildah mount "${storage[@]}" "$container")
    install -d "$mount"/{usr/bin,usr/share/doc/peername,etc/ssl/certs,etc/peername}
    # For the socket of --admin, on a writable mount.
    install -d -o "$user" -g "$user" "$mount/run/peername"
    "$triple-strip" -o "$mount/usr/bin/peername" "$binary"
    chmod 755 "$mount/usr/bin/peername"
    install -m 644 "$bundle" "$mount/etc/ssl/certs/ca-certificates.crt"
    install -m 644 "$root"/LICENSE-* "$mount/usr/share/doc/peername"
    # The capabilities that an ordinary user gets, if the container has them. The effective bit is not set: with it, execve(2)
    # would fail in a container that lacks one. peername makes them effective itself.
    setcap cap_net_raw,cap_net_bind_service,cap_net_admin+p "$mount/usr/bin/peername"
    buildah umount "${storage[@]}" "$container" >>"$work/log"
    buildah config "${storage[@]}" \
        --user "$user:$user" --workingdir / --env PATH=/usr/bin --entrypoint '["/usr/bin/peername"]' --cmd --help \
        --label org.opencontainers.image.title=peername \
        --label org.opencontainers.image.description="Restores the true client address for servers behind a load balancer" \
        --label org.opencontainers.image.version="$version" \
        --label org.opencontainers.image.revision="$revision" \
        --label org.opencontainers.image.created="$(date --utc --date "@$epoch" +%FT%TZ)" \
        --label org.opencontainers.image.licenses="MIT OR Apache-2.0" \
        "$container"
    buildah commit "${storage[@]}" --quiet --rm --omit-history --timestamp "$epoch" "$container" "peername-$arch" >>"$work/log"
    buildah manifest add "${storage[@]}" --arch "$arch" peername "containers-storage:localhost/peername-$arch" >>"$work/log"
}

fail() {
    echo "build.sh: $1" >&2
    exit 1
}

cleanup() {
    # rm(1) would delete the content of an overlay that is still mounted.
    buildah umount "${storage[@]}" --all >/dev/null 2>&1 || true
    rm -rf "$work"
}

[[ $# -ge 2 ]] || fail "usage: build.sh OUT BINARY…"
main "$@"
