#!/bin/bash
# Installs a release in fresh root file systems, each way that docs/install.md names, and opens both doors of README there as an
# ordinary user. Argument: the folder of the release.
set -euo pipefail
release=$(realpath "$1")
cd "$(dirname "$0")"
target=$(realpath "${CARGO_TARGET_DIR:-../../target}")
systems=$target/packages
uv=$target/packages/uv
doors=$PWD/doors.sh
export release systems uv doors

main() {
    ./debian.sh "$systems/debian" bookworm
    ./debian.sh "$systems/trixie" trixie
    ./debian.sh "$systems/ubuntu" noble
    [[ -e $uv ]] || python3 -m pip download --quiet --dest "$uv" uv==0.13.9
    #           where        how it is installed        where the program is             how its servers can have clients
    in_new_root debian       install_deb                /usr/bin/peername                preload
    in_new_root debian       install_rpm                /usr/bin/peername                preload
    in_new_root debian       install_archive_as_root    /usr/local/bin/peername          preload
    in_new_root trixie       install_deb                /usr/bin/peername                preload
    in_new_root ubuntu       install_deb                /usr/bin/peername                preload
    in_new_root ubuntu       install_archive            /home/user/.local/bin/peername   preload
    in_new_root busybox      install_archive            /home/user/.local/bin/peername   notify
    in_new_root debian       install_wheel              /home/user/venv/bin/peername     preload
    in_new_root debian       install_by_uv              /home/user/.local/bin/peername   notify
}

in_new_root() {
    local work
    work=$(mktemp -d "$target/packages/root.XXXXXX")
    echo "roots: $1, $2"
    unshare --mount --pid --fork --net bash -euo pipefail -c 'in_namespace "$@"' - "$work" "$@" \
        >"$work/log" 2>"$work/errors" || echo "FAIL exit code $?" >>"$work/log"
    grep -E '^(ok|FAIL|time)' "$work/log" | sed 's/^/  /'
    if grep -q '^FAIL' "$work/log"; then
        echo "roots: FAILED: see $work/log and $work/errors" >&2
        exit 1
    fi
    rm -rf "$work"
}

# Arguments: a folder, and those of in_new_root.
in_namespace() {
    local work=$1 kind=$2 install=$3 program=$4 mode=$5 root=$1/root
    ip link set lo up
    mkdir "$root"
    case $kind in
        busybox) mount_busybox ;;
        *) mount_system ;;
    esac
    mkdir -p "$root"/{opt,old,proc,dev,tmp,home/user,release,uv,etc}
    install -m 755 "$(command -v busybox)" "$doors" "$root/opt"
    mount --bind -o ro "$release" "$root/release"
    [[ ! -e $root/usr/bin/python3 ]] || mount --bind "$uv" "$root/uv"
    mount --rbind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    chmod 1777 "$root/tmp"
    echo user:x:1000:1000::/home/user:/bin/sh >>"$root/etc/passwd"
    chown 1000:1000 "$root/home/user"
    cd "$root"
    pivot_root . old
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    umount -l old

    SECONDS=0
    "$install"
    echo "time $SECONDS s to install"
    as_user "PATH=$(dirname "$program"):\$PATH sh /opt/doors.sh $program $mode"
    echo "time $SECONDS s with both doors"
}

mount_system() {
    mkdir "$work/upper" "$work/work"
    mount -t overlay -o "lowerdir=$systems/$kind,upperdir=$work/upper,workdir=$work/work" overlay "$root"
}

# Makes a root with busybox and the certificate authorities that hosts trust. As on Alpine, it has no glibc, bash or GNU tools.
mount_busybox() {
    mount -t tmpfs tmpfs "$root"
    install -D -m 755 -t "$root/bin" "$(command -v busybox)"
    chroot "$root" /bin/busybox --install -s /bin
    install -D -m 644 -t "$root/etc/ssl/certs" /etc/ssl/certs/ca-certificates.crt
}

as_user() { /opt/busybox su -s /bin/sh user -c "$1"; }

install_deb() { apt-get install --yes --quiet /release/peername_*_amd64.deb; }
# Without dependencies, because rpm's database of packages is empty on Debian.
install_rpm() { rpm --nodeps --install /release/peername-*.x86_64.rpm; }
install_archive_as_root() { sh /release/install.sh; }
install_archive() { as_user 'sh /release/install.sh'; }
install_wheel() { as_user 'python3 -m venv ~/venv && ~/venv/bin/pip install --no-index /release/peername-*x86_64.whl'; }
install_by_uv() {
    as_user 'python3 -m venv ~/uv && ~/uv/bin/pip install --quiet --no-index --find-links /uv uv
        ~/uv/bin/uvx --offline --from /release/peername-*x86_64.whl peername --version
        ~/uv/bin/uv tool install --offline /release/peername-*x86_64.whl'
}

export -f in_namespace mount_system mount_busybox as_user install_deb install_rpm install_archive_as_root install_archive \
    install_wheel install_by_uv
main
