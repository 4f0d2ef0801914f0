#!/bin/bash
# Tests the chart and the manifests without a cluster: tests/containers/manifests.sh
#
# Compares the manifests that the chart renders with those in packaging/kubernetes and packaging/helm/tests, and decodes them
# with the types of Kubernetes. UPDATE=1 writes the rendered manifests there instead.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
packaging=$here/../../packaging
tools=${CARGO_TARGET_DIR:-$here/../../target}/tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

# Compares standard input with a file.
golden() {
    if [[ -n ${UPDATE:-} ]]; then
        cat >"$1"
    else
        diff --unified "$1" - || fail "$1 differs: if that is intended, run UPDATE=1 $0"
    fi
}

check() {
    "$tools/manifests" check <"$1"
}

"$tools/helm" lint --strict --quiet "$packaging/helm/peername"
for values in "$packaging"/helm/tests/values/*.yaml; do
    mode=$(basename "$values" .yaml)
    rendered=$packaging/kubernetes/$mode.yaml
    [[ $mode != metrics ]] || rendered=$packaging/helm/tests/$mode.yaml
    "$tools/helm" lint --strict --quiet --values "$values" "$packaging/helm/peername"
    {
        echo "# Rendered from packaging/helm/peername by tests/containers/manifests.sh, with packaging/helm/tests/values/$mode.yaml."
        "$tools/helm" template peername "$packaging/helm/peername" --values "$values" --api-versions monitoring.coreos.com/v1
    } | golden "$rendered"
done
cp -r "$packaging/helm" "$work/helm"
"$tools/helm" dependency build "$work/helm/tests/web" >"$work/log" || fail "$(<"$work/log")"
"$tools/helm" template web "$work/helm/tests/web" | golden "$packaging/helm/tests/web.yaml"
# Labels of the user's replace the default ones: pods with both are fewer than those that the user names.
"$tools/helm" template peername "$packaging/helm/peername" --set mode=egress --set egress.clients.matchLabels.app=shop \
    --set egress.dns.podSelector.matchLabels.app=names >"$work/labels.yaml"
[[ $(grep -c 'app: shop' "$work/labels.yaml") == 2 ]] || fail "the labels of clients"
! grep -E 'peername.egress|kube-system|kube-dns' "$work/labels.yaml" || fail "default labels beside those of the user"
"$tools/helm" template peername "$packaging/helm/peername" --values "$packaging/helm/tests/values/agent.yaml" \
    --set metrics.enabled=true,metrics.port=9101 >"$work/agent.yaml"
grep -q -e '- --admin=0.0.0.0:9101$' "$work/agent.yaml" && grep -q ' port: 9101$' "$work/agent.yaml" || fail "metrics of the agent"
check "$work/agent.yaml" >"$work/log"
for wrong in --set=mode=both --set=mode=node --set=mode=agent --set=metrics.prot=1; do
    ! "$tools/helm" template peername "$packaging/helm/peername" "$wrong" >"$work/log" 2>&1 || fail "$wrong was accepted"
done
"$tools/manifests" kustomize "$packaging/kubernetes/sidecar" >"$work/sidecar.yaml"

# Compares the level of the Pod Security Standards that each pod satisfies, and what it lacks for a higher one.
{
    for file in "$work/sidecar.yaml" "$packaging"/helm/tests/{metrics,web}.yaml "$packaging"/kubernetes/{agent,egress,node}.yaml; do
        level=$(check "$file")
        echo "$(basename "$file"): $level"
    done
} | golden "$here/pod-security.txt"
! printf 'apiVersion: v1\nkind: Pod\nspec:\n  containers: []\n  hostNetwrok: true\n' | "$tools/manifests" check >"$work/log" 2>&1 ||
    fail "an unknown field was accepted"
echo "8 passed, 0 failed"
