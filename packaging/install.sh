#!/bin/sh
# Installs peername from an archive of `make dist`, whose checksum it verifies first.
#
#   sh install.sh [--from DIR|URL] [--key TEXT | --key-file FILE] [--prefix DIR]
#   sh install.sh --remove [--prefix DIR]
#
#   --from       where the archive and SHA256SUMS are; by default the folder of this script
#   --key        a public key of minisign(1): SHA256SUMS has to have a signature of it
#   --key-file   the same, in a file
#   --prefix     by default /usr/local for root, and ~/.local for others
#   --remove     removes what was installed, and leaves the configuration in /etc/peername
#
# It needs tar, gzip and sha256sum, which busybox has, too; curl or wget for a URL; and minisign for a key. Root also gets the
# units of systemd, the examples in /etc/peername, and the AppArmor profiles.
set -eu
umask 022

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

# Prints the lines at the beginning of this script, which it can't find if it was piped into a shell.
help() {
    case $0 in
        *install.sh) sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0" ;;
        *) fail "run the script as a file to see its help" ;;
    esac
}

is_root() { [ "$(id -u)" = 0 ]; }

main() {
    from=
    key=
    key_file=
    prefix=/usr/local
    action=install
    is_root || prefix=$HOME/.local
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) help && exit ;;
            --remove) action=uninstall && shift && continue ;;
            --from | --key | --key-file | --prefix) [ $# -ge 2 ] || fail "$1 takes a value" ;;
            *) fail "$1: unknown option; the first lines of this script list them" ;;
        esac
        case $1 in
            --from) from=$2 ;;
            --key) key=$2 ;;
            --key-file) key_file=$2 ;;
            --prefix) prefix=$2 ;;
        esac
        shift 2
    done
    case $prefix in
        *[!A-Za-z0-9/._+-]* | *..*) fail "--prefix $prefix: use letters, digits and /._+-" ;;
        /*) ;;
        *) prefix=$PWD/$prefix ;;
    esac
    # One spelling of each path: owns_profiles compares it.
    prefix=$(echo "$prefix/" | sed -e ':again' -e 's|/\.\{0,1\}/|/|; t again' -e 's|/$||')
    list=$prefix/share/peername/installed
    ! is_root || require_safe "${prefix:-/}"
    $action
}

install() {
    # Piped into a shell, this script has no folder of its own.
    [ -n "$from" ] || case $0 in
        *install.sh) from=$(dirname "$0") ;;
        *) fail "--from is missing: where are the archive and SHA256SUMS?" ;;
    esac
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch SHA256SUMS
    [ -z "$key$key_file" ] || verify_signature
    unpack
    copy
    ! is_root || configure_host
    echo "$("$tree/usr/bin/peername" --version) is installed in $prefix/bin"
    advise
}

uninstall() {
    [ -e "$list" ] || fail "$prefix: nothing was installed here by this script"
    while read -r file; do
        case $file in
            *..* | /*) fail "$list: $file is no file of peername" ;;
            bin/peername | lib/peername/* | lib/systemd/system/peername* | share/*peername*) rm -f "$prefix/$file" ;;
            *) fail "$list: $file is no file of peername" ;;
        esac
    done <"$list"
    rm -f "$list"
    for folder in lib/peername share/peername share/doc/peername; do
        [ ! -d "$prefix/$folder" ] || find "$prefix/$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    if is_root && owns_profiles; then
        for profile in /etc/apparmor.d/peername-service /etc/apparmor.d/peername; do
            [ ! -e $profile ] || ! command -v apparmor_parser >/dev/null || apparmor_parser --remove $profile 2>/dev/null || true
            rm -f $profile
        done
        [ ! -d /run/systemd/system ] || systemctl daemon-reload
    fi
    echo "peername is removed from $prefix; a process of it that runs still does"
}

# Fails if a user other than root can change what root is about to write, or to execute.
require_safe() {
    part=$1
    while :; do
        if [ -e "$part" ] && [ -n "$(find "$part" -prune \( ! -user 0 -o -perm -002 \) -print)" ]; then
            fail "--prefix $prefix: others than root can change $part: install as its owner, or elsewhere"
        fi
        [ "$part" != / ] || return 0
        part=$(dirname "$part")
    done
}

# Copies a file from where the release is.
fetch() {
    case $from in
        http://*) [ -n "$key$key_file" ] || fail "--from $from: use https, or a --key" ;;
    esac
    case $from in
        http://* | https://*)
            if command -v curl >/dev/null; then
                curl --fail --silent --show-error --location --proto '=http,https' --proto-redir '=https' \
                    --output "$work/$1" "$from/$1"
            else
                wget -q -O "$work/$1" "$from/$1"
            fi || fail "$from/$1 can't be fetched"
            ;;
        *)
            if is_root && [ -z "$key$key_file" ] && [ -n "$(find "$from" -prune -perm -002 -print 2>/dev/null)" ]; then
                fail "--from $from: every user can write there: use another folder, or a --key"
            fi
            cp "$from/$1" "$work/$1" || fail "$from: is this the folder of a release? --from names it"
            ;;
    esac
}

verify_signature() {
    command -v minisign >/dev/null || fail "--key needs minisign, which is not installed"
    fetch SHA256SUMS.minisig
    if [ -n "$key_file" ]; then set -- -p "$key_file"; else set -- -P "$key"; fi
    # The signed comment names the version.
    minisign -VQ -m "$work/SHA256SUMS" "$@" || fail "SHA256SUMS is not signed by this key: don't install this"
}

# Verifies the archive for this machine, and leaves its files in the work folder.
unpack() {
    archive=$(sed -n "s/^[0-9a-f]*  \(peername-[0-9][^/]*-$(uname -m)\.tar\.gz\)$/\1/p" "$work/SHA256SUMS")
    [ "$(echo "$archive" | wc -w)" = 1 ] || fail "SHA256SUMS lists no archive, or several, for $(uname -m)"
    fetch "$archive"
    sum=$(sha256sum "$work/$archive") || fail "sha256sum failed"
    grep -q "^${sum%% *}  $archive\$" "$work/SHA256SUMS" ||
        fail "$archive: the checksum is another: fetch it again, and don't use this one"
    tar -C "$work" -xzf "$work/$archive"
    tree=$work/${archive%.tar.gz}
}

# Copies the files, each by rename, so that a running program keeps its own. Files of an older version that the new one does not
# have stay in the list, so that --remove finds them.
copy() {
    is_root || rm -rf "$tree/usr/lib/systemd"
    for unit in "$tree"/usr/lib/systemd/system/*; do
        [ ! -e "$unit" ] || sed -i "s|/usr/bin/peername|$prefix/bin/peername|; s|file:///usr/share|file://$prefix/share|" "$unit"
    done
    (cd "$tree/usr" && find . -type f -o -type l) | sed 's|^\./||' >"$work/list"
    mkdir -p "$(dirname "$list")"
    { cat "$work/list" && [ ! -e "$list" ] || cat "$list"; } | sort -u >"$work/union"
    cp "$work/union" "$list"
    while read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        rm -f "$prefix/$file.new"
        cp -P "$tree/usr/$file" "$prefix/$file.new"
        mv -f "$prefix/$file.new" "$prefix/$file"
    done <"$work/list"
}

# Whether the AppArmor profiles apply to this prefix: they name the paths of the program.
owns_profiles() { [ "$prefix" = /usr ] || [ "$prefix" = /usr/local ]; }

configure_host() {
    (cd "$tree/etc/peername" && find . -type f) | while read -r file; do
        [ ! -e "/etc/peername/$file" ] || continue
        mkdir -p "$(dirname "/etc/peername/$file")"
        cp "$tree/etc/peername/$file" "/etc/peername/$file"
    done
    if owns_profiles; then
        mkdir -p /etc/apparmor.d
        cp "$tree/etc/apparmor.d/peername-service" /etc/apparmor.d/
        sh "$tree/usr/share/peername/apparmor/load.sh"
    fi
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Says what would fail at the first use, and what to do about it.
advise() {
    case :$PATH: in
        *":$prefix/bin:"*) ;;
        *) echo "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH" ;;
    esac
    if [ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" = 1 ] && ! owns_profiles; then
        echo "peername jail needs user namespaces, which AppArmor denies here: install as root below /usr/local"
    fi
}

main "$@"
