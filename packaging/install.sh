#!/bin/sh
# Installs peername from an archive of `make dist`, whose checksum it verifies first.
#
#   sh install.sh [--from DIR|URL] [--key KEY] [--prefix DIR]
#   sh install.sh --remove [--prefix DIR]
#
#   --from     where the archive and SHA256SUMS are; by default the folder of this script
#   --key      a public key of minisign(1), as text or a file: SHA256SUMS has to have a signature of it
#   --prefix   by default /usr/local for root, and ~/.local for others
#   --remove   removes what was installed, and leaves the configuration
#
# It needs tar, gzip and sha256sum, curl or wget for a URL, and minisign for a key: those of busybox will do. Root also gets the
# units of systemd, the examples in /etc/peername, and the AppArmor profiles.
set -eu

from=$(dirname "$0")
key=
prefix=/usr/local
remove=
[ "$(id -u)" = 0 ] || prefix=$HOME/.local

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --remove) remove=yes && shift && continue ;;
        --from | --key | --prefix) [ $# -ge 2 ] || fail "$1 takes a value" ;;
        *) fail "$1: unknown option; the first lines of this script list them" ;;
    esac
    case $1 in
        --from) from=$2 ;;
        --key) key=$2 ;;
        --prefix) prefix=$2 ;;
    esac
    shift 2
done
case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
esac
list=$prefix/share/peername/installed

remove() {
    [ -e "$list" ] || fail "$prefix: nothing was installed here by this script"
    while read -r file; do rm -f "$prefix/$file"; done <"$list"
    rm -f "$list"
    rmdir "$prefix/lib/peername" "$prefix/share/peername/apparmor" "$prefix/share/peername" 2>/dev/null || true
    echo "peername is removed from $prefix"
}

# Copies a file from where the release is.
fetch() {
    case $from in
        http://* | https://*)
            if command -v curl >/dev/null; then
                curl --fail --silent --show-error --location --output "$work/$1" "$from/$1"
            else
                wget -q -O "$work/$1" "$from/$1"
            fi || fail "$from/$1 can't be fetched"
            ;;
        *) cp "$from/$1" "$work/$1" || fail "$from: is this the folder of a release? --from names it" ;;
    esac
}

verify_signature() {
    command -v minisign >/dev/null || fail "--key needs minisign, which is not installed"
    fetch SHA256SUMS.minisig
    if [ -e "$key" ]; then set -- -p "$key"; else set -- -P "$key"; fi
    minisign -Vq -m "$work/SHA256SUMS" "$@" || fail "SHA256SUMS is not signed by $key: don't install this"
}

# Prints the name of the archive for this machine, and leaves its files in the work folder.
unpack() {
    archive=$(sed -n "s/^[0-9a-f]*  \(peername-[0-9][^/]*-$(uname -m)\.tar\.gz\)$/\1/p" "$work/SHA256SUMS")
    [ "$(echo "$archive" | wc -w)" = 1 ] || fail "SHA256SUMS lists no archive, or several, for $(uname -m)"
    fetch "$archive"
    grep "  $archive\$" "$work/SHA256SUMS" >"$work/sum"
    (cd "$work" && sha256sum -c sum >/dev/null 2>&1) ||
        fail "$archive: the checksum is another: fetch it again, and don't use this one"
    tar -C "$work" -xzf "$work/$archive"
    tree=$work/${archive%.tar.gz}
}

# Copies the files, each by rename, so that a running program keeps its own.
copy() {
    [ "$(id -u)" = 0 ] || rm -rf "$tree/usr/lib/systemd"
    for unit in "$tree"/usr/lib/systemd/system/*; do
        [ ! -e "$unit" ] || sed -i "s|/usr/bin/peername|$prefix/bin/peername|; s|file:///usr/share|file://$prefix/share|" "$unit"
    done
    (cd "$tree/usr" && find . -type f -o -type l) | sed 's|^\./||' >"$work/list"
    while read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        cp -P "$tree/usr/$file" "$prefix/$file.new"
        mv -f "$prefix/$file.new" "$prefix/$file"
    done <"$work/list"
    cp "$work/list" "$list"
}

configure_host() {
    (cd "$tree/etc" && find . -type f) | while read -r file; do
        [ ! -e "/etc/$file" ] || continue
        mkdir -p "/etc/$(dirname "$file")"
        cp "$tree/etc/$file" "/etc/$file"
    done
    sh "$prefix/share/peername/apparmor/load.sh"
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Says what would fail at the first use, and what to do about it.
advise() {
    case :$PATH: in
        *":$prefix/bin:"*) ;;
        *) echo "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH" ;;
    esac
    if [ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ] &&
        [ ! -e /etc/apparmor.d/peername -o "$prefix" != /usr/local ]; then
        echo "peername jail needs user namespaces, which AppArmor denies here: install as root below /usr/local"
    fi
}

if [ -n "$remove" ]; then
    remove
    exit
fi
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch SHA256SUMS
[ -z "$key" ] || verify_signature
unpack
copy
[ "$(id -u)" != 0 ] || configure_host
echo "$("$prefix/bin/peername" --version) is installed in $prefix/bin"
advise
