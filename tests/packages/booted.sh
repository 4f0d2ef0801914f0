#!/bin/bash
# Installs the packages on a fresh Debian that systemd has booted in a container, as their users would.
# Argument: the folder of the packages.
#
#   client ─────────── balancer, HAProxy ─────────── server: sshd, peername
#   203.0.113.9        203.0.113.1, 192.0.2.10       192.0.2.20
set -euo pipefail
packages=$(realpath "$1")
cd "$(dirname "$0")"
target=$(realpath "${CARGO_TARGET_DIR:-../../target}")
debian=$target/packages/debian

./debian.sh "$debian" bookworm

# Each run has a fresh copy, an overlay on the installed system.
work=$(mktemp -d "$target/packages/run.XXXXXX")
in_namespace() {
    root=$work/root
    mkdir "$work/upper" "$work/work" "$root"
    mount -t overlay -o "lowerdir=$debian,upperdir=$work/upper,workdir=$work/work" overlay "$root"
    # systemd in the container can't use a hierarchy of both versions.
    ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified

    mkdir "$root/packages"
    cp "$packages"/peername_*_amd64.deb "$root/packages"
    cp stranger.sh haproxy.cfg "$root/packages"
    cp stranger.service "$root/etc/systemd/system/"
    ln -s ../stranger.service "$root/etc/systemd/system/multi-user.target.wants/stranger.service"
    # The balancer's HAProxy is started in its namespace, by stranger.sh.
    rm -f "$root"/etc/systemd/system/multi-user.target.wants/haproxy.service

    timeout --signal=KILL 180 systemd-nspawn --directory="$root" --register=no --keep-unit --private-network \
        --machine=peername-packages --console=pipe --boot </dev/null >"$work/console.log" 2>&1 || true
    cp "$root/packages/log" "$work/log" 2>/dev/null || true
    umount "$root"
}
export -f in_namespace
export work packages debian
unshare --mount bash -euo pipefail -c in_namespace

grep -E '^(ok|FAIL)' "$work/log" || true
if [[ ! -e $work/log ]] || grep -q '^FAIL' "$work/log" || ! grep -q '^ok   done' "$work/log"; then
    echo "packages: FAILED: see $work/log and $work/console.log" >&2
    exit 1
fi
rm -rf "$work"
