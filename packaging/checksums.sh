#!/bin/bash
# Writes SHA256SUMS of everything that is released in a folder, and its signature if there is a key.
# Usage: checksums.sh OUT [KEY], a secret key of minisign(1). The signed comment names the version.
set -euo pipefail
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml" | head -n 1)
cd "$1"
shopt -s nullglob
files=(*.deb *.rpm *.tar *.tar.gz *.whl *.json *.sh)
[[ ${#files[@]} -gt 0 ]] || { echo "checksums.sh: nothing is released in $1" >&2; exit 1; }
rm -f SHA256SUMS.minisig
sha256sum -- "${files[@]}" >SHA256SUMS
[[ -z ${2:-} ]] || minisign -S -s "$2" -m SHA256SUMS -t "peername $version"
