#!/bin/bash
# Builds the last commit a second time, in another folder and with another home of cargo, and compares.
# Usage: reproducible.sh RELEASE ZIG, the folder of the first build (make static) and that of the C compiler.
# What is compared is what is released, without debug information: that of the C library has the paths of its compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
first=$(realpath "$1")
zig=$(realpath "$2")
[[ -z $(git status --porcelain --untracked-files=no) ]] || { echo "reproducible: commit first" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
clone=$work/a-folder-with-another-and-longer-name
git clone --quiet . "$clone"
mkdir -p "$clone/target/tools" "$work/cargo"
ln -s "$zig" "$clone/target/tools/zig"
env --unset=CARGO_TARGET_DIR CARGO_HOME="$work/cargo" make --quiet -C "$clone" static STATIC="$(uname -m)"

second=$clone/target/$(uname -m)-unknown-linux-musl/dist
strip=$(command -v llvm-strip || echo strip)
failed=
for file in peername libpeername.so libpeername_connect.so; do
    "$strip" -o "$work/first" "$first/$file"
    "$strip" -o "$work/second" "$second/$file"
    if cmp "$work/first" "$work/second"; then
        echo "reproducible: $file is the same"
    else
        failed=1
    fi
done
[[ -z $failed ]] || { echo "reproducible: FAILED (were both built from the last commit?)" >&2; exit 1; }
