#!/bin/bash
# Builds peername-VERSION-ARCH.tar.gz from what `make install` installs, and the SBOM beside it if there is one.
# Usage: archive.sh RELEASE OUT, the folder of the built program and the one of the archive.
# The same program makes the same archive; its files have the time SOURCE_DATE_EPOCH, by default that of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=$(readelf -h "$release/peername" | sed -n 's/ *Machine: *//p' | sed 's/.*X86-64/x86_64/; s/AArch64/aarch64/')
name=peername-$version-$arch
make --quiet install RELEASE="$release" DESTDIR="$work/$name" PREFIX=/usr SYSCONFDIR=/etc
strip=$(command -v llvm-strip || echo strip)
"$strip" "$work/$name/usr/bin/peername" "$work/$name"/usr/lib/peername/libpeername*.so
[[ ! -e $out/peername.cdx.json ]] || cp "$out/peername.cdx.json" "$work/$name/usr/share/doc/peername/"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$name" |
    gzip -9n >"$out/$name.tar.gz"
packaging/checksums.sh "$out"
