#!/bin/bash
# Installs the system that the tests of a release start from, once. Arguments: the folder of its root, and its release:
# bookworm or trixie (Debian), or noble (Ubuntu).
set -euo pipefail
[[ ! -e $1/usr/bin/rpm ]] || exit 0
echo "packages: installing $2 in $1"
rm -rf "$1" "$1.part"
mkdir -p "$(dirname "$1")"
packages=systemd,systemd-sysv,dbus,openssh-server,openssh-client,haproxy,iproute2,netcat-openbsd,rpm,python3-venv
case $2 in
    # Debian has the keys of Ubuntu's archive in few of its releases.
    noble) from=(--components=main,universe --no-check-gpg noble "$1.part" http://archive.ubuntu.com/ubuntu gutsy) ;;
    *) from=("$2" "$1.part") ;;
esac
debootstrap --variant=minbase --include=$packages "${from[@]}" >"$1.log"
mv "$1.part" "$1"
