#!/bin/bash
# Compiles crates/kernel/bpf/udp.c, the eBPF program. The object is kept in the repository, so that a build needs neither
# clang nor the headers of libbpf.
#
# With --check the result is compared with the object in the repository, byte for byte. Another release of clang may
# generate other code, so the comparison is skipped unless the release is CLANG_RELEASE.
set -euo pipefail
cd "$(dirname "$0")/../crates/kernel"

CLANG_RELEASE=14 # Debian 12
object=bpf/udp.o
clang=${CLANG:-clang}
strip=${LLVM_STRIP:-llvm-strip}

release=$("$clang" -dumpversion 2>/dev/null | cut -d. -f1) || true
if [[ $release != "$CLANG_RELEASE" ]] || ! command -v "$strip" >/dev/null; then
    needs="clang $CLANG_RELEASE, llvm-strip and the headers of libbpf and the kernel"
    if [[ ${1-} == --check ]]; then
        echo "check: $object is not compared with its source, which needs $needs"
        exit 0
    fi
    echo "make bpf: needs $needs (Debian 12: clang llvm libbpf-dev linux-libc-dev); CLANG and LLVM_STRIP name others" >&2
    exit 1
fi

compiled=$(mktemp)
trap 'rm -f "$compiled"' EXIT
# All targets of peername are little-endian. Debian has a separate asm/types.h for each architecture. The debug
# information is needed for BTF only; the path prefix is removed, so that the object is the same from every directory.
"$clang" -target bpfel -mcpu=v3 -O2 -g -Wall -Werror -fdebug-prefix-map="$PWD=." \
    "-I/usr/include/$(uname -m)-linux-gnu" -c bpf/udp.c -o "$compiled"
"$strip" -g "$compiled"

if [[ ${1-} == --check ]]; then
    cmp "$compiled" "$object" || { echo "check: $object is not what its source compiles to: run make bpf" >&2; exit 1; }
else
    install -m 644 "$compiled" "$object"
fi
