#!/bin/bash
# Installs what the tests of containers need in addition to tests/setup.sh: Debian's tools for images, and helm and a checker of
# manifests with Kubernetes' own types, which are built from source into target/tools.
set -euo pipefail

packages=(
    buildah podman catatonit crun runc netavark aardvark-dns iptables nftables iproute2
    binutils-x86-64-linux-gnu binutils-aarch64-linux-gnu libcap2-bin ca-certificates
    haproxy nginx curl openssl python3 golang-go
)
missing=()
for package in "${packages[@]}"; do
    [[ $package != golang-go ]] || ! command -v go >/dev/null || continue
    dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
done
if [[ ${#missing[@]} -gt 0 ]]; then
    echo "setup: missing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    install=(apt-get install --yes --quiet --no-install-recommends --no-upgrade "${missing[@]}")
    "${install[@]}" || { apt-get update --quiet && "${install[@]}"; }
fi

here=$(cd "$(dirname "$0")" && pwd)
tools=${CARGO_TARGET_DIR:-$here/../../target}/tools
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)
cd "$here/../harness/kubernetes"
export CGO_ENABLED=0 GOWORK=off
for tool in helm:helm.sh/helm/v4/cmd/helm manifests:.; do
    [[ -n $(find . -newer "$tools/${tool%%:*}" 2>&1) ]] || continue
    echo "setup: building ${tool%%:*}"
    go build -trimpath -o "$tools/${tool%%:*}" "${tool#*:}"
    touch "$tools/${tool%%:*}"
done
