#!/bin/bash
# Writes the crates that the program consists of, as CycloneDX.
# Usage: sbom.sh TOOL OUT: cargo-cyclonedx, which writes beside every Cargo.toml and so gets a copy of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(realpath "$1")
mkdir -p "$(dirname "$2")"
out=$(realpath "$2")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$work"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} "$tool" cyclonedx --quiet --format json \
    --spec-version 1.5 --target "$(uname -m)-unknown-linux-musl" --override-filename peername.cdx \
    --manifest-path "$work/crates/cli/Cargo.toml"
sed "s|$work|/usr/src/peername|g" "$work/crates/cli/peername.cdx.json" >"$out"
packaging/checksums.sh "$(dirname "$out")"
