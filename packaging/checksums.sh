#!/bin/bash
# Writes SHA256SUMS of everything that is released in a folder.
set -euo pipefail
cd "$1"
shopt -s nullglob
sha256sum -- *.deb *.rpm *.tar *.tar.gz *.json >SHA256SUMS
