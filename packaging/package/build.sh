#!/bin/bash
# Builds peername_VERSION_ARCH.deb and peername-VERSION-1.ARCH.rpm from what `make install` installs.
# Usage: build.sh RELEASE OUT, the folder of the built program and the one of the packages.
# SOURCE_DATE_EPOCH is the time of every file in them; by default that of the last commit. MAINTAINER is the name and the address
# of the packages' maintainer.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=packaging/package
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} TZ=UTC LC_ALL=C

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
maintainer=${MAINTAINER:-the peername authors <peername@localhost>}
case $(readelf -h "$release/peername" | sed -n 's/ *Machine: *//p') in
    *X86-64*) deb=amd64 rpm=x86_64 ;;
    *AArch64*) deb=arm64 rpm=aarch64 ;;
    *) echo "build.sh: $release/peername: for which architecture is this?" >&2 && exit 1 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
umask 022
make --quiet install RELEASE="$release" DESTDIR="$root" PREFIX=/usr SYSCONFDIR=/etc
strip=$(command -v llvm-strip || echo strip)
"$strip" "$root/usr/bin/peername" "$root"/usr/lib/peername/libpeername*.so
gzip -9n "$root"/usr/share/man/man1/*
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

build_deb() {
    # Debian's zsh reads the completions of packages from a folder of their own.
    mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
    chmod 644 "$root"/usr/lib/peername/*.so
    local control=$root/DEBIAN documentation=$root/usr/share/doc/peername
    mkdir "$control"
    install -D -m 644 $here/lintian-overrides "$root/usr/share/lintian/overrides/peername"
    { cat $here/copyright && echo "License: MIT" && sed 's/^$/./; s/^/ /' LICENSE-MIT; } >"$documentation/copyright"
    rm "$documentation"/LICENSE-*
    printf 'peername (%s) unstable; urgency=medium\n\n  * CHANGELOG.md has what is new.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(date --rfc-email --date="@$SOURCE_DATE_EPOCH")" | gzip -9n >"$documentation/changelog.gz"
    find "$root/usr" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    # The static binary depends on nothing; the preloaded libraries use the C library of the program that loads them.
    cat >"$control/control" <<EOF
Package: peername
Version: $version
Architecture: $deb
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Section: net
Priority: optional
Description: true client addresses for servers behind a load balancer
 Accepts connections and datagrams that begin with a PROXY protocol header,
 strips it, and connects to the server from the client's own address and port.
EOF
    (cd "$root" && find etc -type f | sed 's|^|/|' | sort) >"$control/conffiles"
    (cd "$root" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$control/md5sums"
    install -m 755 $here/postinst $here/prerm $here/postrm "$control"
    find "$control" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$root" "$out/peername_${version}_$deb.deb"
}

build_rpm() {
    # The scripts are Debian's: rpm passes them the number of versions that remain.
    {
        (cd "$root" && find etc -type f) | sed 's|^|%config(noreplace) /|'
        (cd "$root" && find usr -type f -o -type l) | sed 's|^|/|'
    } >"$work/files"
    rpmbuild -bb --quiet --target "$rpm" \
        --define "_topdir $work/rpm" --define "_rpmdir $out" --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
        --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
        --define "clamp_mtime_to_source_date_epoch 1" --define "_build_id_links none" \
        --define "peername_version $version" --define "peername_root $root" --define "peername_files $work/files" \
        --define "peername_scripts $PWD/$here" $here/peername.spec
}

build_rpm
build_deb
packaging/checksums.sh "$out"
