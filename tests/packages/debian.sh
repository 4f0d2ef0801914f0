#!/bin/bash
# Installs the Debian that the tests of a release start from, once. Argument: the folder of its root.
set -euo pipefail
[[ ! -e $1/usr/bin/rpm ]] || exit 0
echo "packages: installing Debian in $1"
rm -rf "$1" "$1.part"
mkdir -p "$(dirname "$1")"
debootstrap --variant=minbase \
    --include=systemd,systemd-sysv,dbus,openssh-server,openssh-client,haproxy,iproute2,netcat-openbsd,rpm,python3-venv \
    bookworm "$1.part" >"$1.log"
mv "$1.part" "$1"
