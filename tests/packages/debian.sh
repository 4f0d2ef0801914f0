#!/bin/bash
# Installs a system in which the tests of packages start, unless the folder has one. Arguments: the folder of its root, and its
# release: bookworm or trixie (Debian), or noble (Ubuntu).
set -euo pipefail
[[ ! -e $1/usr/bin/rpm ]] || exit 0
echo "packages: installing $2 in $1"
rm -rf "$1" "$1.part"
mkdir -p "$(dirname "$1")"
packages=systemd,systemd-sysv,dbus,openssh-server,openssh-client,haproxy,iproute2,netcat-openbsd,rpm,python3-venv
ubuntu=https://archive.ubuntu.com/ubuntu
case $2 in
    noble)
        # Debian lacks the keys of Ubuntu's archive. ubuntu-keyring has them; this copy is verified by its checksum.
        keys=$(mktemp -d)
        trap 'rm -rf "$keys"' EXIT
        curl -sSfo "$keys/deb" "$ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
        sha256sum --quiet --check <<<"36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $keys/deb"
        dpkg-deb --extract "$keys/deb" "$keys"
        from=(--components=main,universe --keyring="$keys/usr/share/keyrings/ubuntu-archive-keyring.gpg"
            noble "$1.part" "$ubuntu" gutsy)
        ;;
    *) from=("$2" "$1.part") ;;
esac
debootstrap --variant=minbase --include=$packages "${from[@]}" >"$1.log"
mv "$1.part" "$1"
