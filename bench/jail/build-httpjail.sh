#!/bin/bash
# Builds httpjail with httpjail.patch, in the directory $1, with the crate's own lock file and peername's release profile.
set -euo pipefail

version=0.6.2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/fetch" && cd "$1"

# A package that depends on httpjail, so that cargo downloads and verifies the crate.
cat >fetch/Cargo.toml <<END
[workspace]
[package]
name = "fetch"
version = "0.0.0"
edition = "2024"
[lib]
path = "lib.rs"
[dependencies]
httpjail = "=$version"
END
touch fetch/lib.rs
manifest=$(cargo metadata --quiet --format-version 1 --manifest-path fetch/Cargo.toml |
	grep -o "\"manifest_path\":\"[^\"]*/httpjail-$version/Cargo.toml\"" | cut -d '"' -f 4)

rm -rf source
cp -r "${manifest%/*}" source
patch --quiet --strip 1 --directory source <"$here/httpjail.patch"
# Without this line, cargo would take the crate for a member of the workspace that this directory is in.
printf '\n[workspace]\n' >>source/Cargo.toml
# Not --locked: the patch removes V8, so cargo has to change the lock file.
# The variable keeps AWS-LC as httpjail has it: peername's .cargo/config.toml applies below its directory, and sets it.
export AWS_LC_SYS_NO_JITTER_ENTROPY=0
CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_PANIC=abort \
	cargo build --release --manifest-path source/Cargo.toml --target-dir target
