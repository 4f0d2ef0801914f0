#!/bin/bash
# Writes SHA256SUMS of everything that is released in a folder, and its signature if there is a key.
# Usage: checksums.sh OUT [KEY], a secret key of minisign(1).
set -euo pipefail
cd "$1"
shopt -s nullglob
rm -f SHA256SUMS.minisig
sha256sum -- *.deb *.rpm *.tar *.tar.gz *.whl *.json *.sh >SHA256SUMS
[[ -z ${2:-} ]] || minisign -S -s "$2" -m SHA256SUMS
