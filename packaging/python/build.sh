#!/bin/bash
# Builds a Python wheel, for `uvx peername` and `pipx install peername`, from a static program and the libraries beside it.
# Usage: build.sh RELEASE OUT PYTHON: PYTHON has the package `wheel`.
# The same program makes the same wheel; its files have the time SOURCE_DATE_EPOCH, by default that of the last commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
python=$3
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

! readelf --program-headers "$release/peername" | grep -q INTERP ||
    { echo "python/build.sh: $release/peername is no static program: make static builds one" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=$(readelf -h "$release/peername" | sed -n 's/ *Machine: *//p' | sed 's/.*X86-64/x86_64/; s/AArch64/aarch64/')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
data=$work/peername-$version.data
about=$work/peername-$version.dist-info
strip=$(command -v llvm-strip || echo strip)
# What is in `data` is installed below the prefix of the environment, where the program looks for its libraries.
install -D -m 755 -t "$data/scripts" "$release/peername"
install -D -m 755 -t "$data/data/lib/peername" "$release"/libpeername{,_connect}.so
"$strip" "$data/scripts/peername" "$data"/data/lib/peername/*.so
install -D -m 644 -t "$about/licenses" LICENSE-APACHE LICENSE-MIT
# A static program needs no C library: any of manylinux and of musllinux will do.
cat >"$about/WHEEL" <<EOF
Wheel-Version: 1.0
Generator: peername
Root-Is-Purelib: false
Tag: py3-none-manylinux_2_17_$arch
Tag: py3-none-musllinux_1_1_$arch
EOF
cat >"$about/METADATA" <<EOF
Metadata-Version: 2.1
Name: peername
Version: $version
Summary: The true client for servers behind a load balancer, and a jail for what a program sends
License: MIT OR Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Internet :: Proxy Servers
Requires-Python: >=3.8
Description-Content-Type: text/markdown

$(sed '/^!\[/d; /^## Who came in/,$d' README.md | sed '/^    make build/d')
EOF
"$python" -m wheel pack --dest-dir "$out" "$work" >/dev/null
packaging/checksums.sh "$out"
