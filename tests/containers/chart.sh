#!/bin/bash
# Runs the pods that the chart renders, with podman: tests/containers/chart.sh IMAGE.tar, as root.
#
# They use the OPA that tests/setup.sh has built.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
[[ -n ${STORAGE:-} ]] || exec "$here/podman.sh" "$here/chart.sh" "$(realpath "$1")"
# shellcheck source=tests/containers/pods.sh
source "$here/pods.sh"
archive=$1
export HELM_CACHE_HOME=$STORAGE HELM_CONFIG_HOME=$STORAGE HELM_DATA_HOME=$STORAGE

template() {
    "$tools/helm" template "$@" >"$STORAGE/rendered.yml"
}

sidecar_of_another_chart_names_the_client() {
    cp -r "$root/packaging/helm" "$STORAGE/helm"
    "$tools/helm" dependency build "$STORAGE/helm/tests/web"
    template web "$STORAGE/helm/tests/web" --set "peername.sidecar.trust={$balancer}"
    play "$STORAGE/rendered.yml"
    client_is_seen_by web
}

node_proxy_names_the_client() {
    template node "$root/packaging/helm/peername" --set mode=node --set "node.trust={$balancer}"
    mkdir -p "$STORAGE/nginx/tmp"
    sed "s|/tmp|$STORAGE/nginx/tmp|; s|/dev/stdout|$STORAGE/nginx/log|; s|include .*|include $root/packaging/examples/docker/nginx.conf;|" \
        <(nginx_configuration) >"$STORAGE/nginx/conf"
    nginx -c "$STORAGE/nginx/conf" -e "$STORAGE/nginx/errors" &
    play "$STORAGE/rendered.yml" --network host
    request_through_haproxy $host
    grep "^$client .*GET / HTTP/1.1" "$STORAGE/nginx/log"
    kill "$(<"$STORAGE/nginx/tmp/nginx.pid")"
}

egress_forwards_what_the_policy_allows() {
    local ca=$STORAGE/ca proxy=http://$pod:8080
    podman run --rm --user 0 --volume "$STORAGE:/ca" localhost/peername ca init --ca /ca/ca
    podman run --rm --user 0 --volume "$STORAGE:/ca" localhost/peername ca export --ca /ca/ca >"$STORAGE/ca.crt"
    # Gives the Secret's file the group and mode that the kubelet gives it for `fsGroup`.
    chgrp 65532 "$ca/authority.pem"
    chmod 440 "$ca/authority.pem"
    cat >"$STORAGE/policy.rego" <<'REGO'
package peername

default allow := false

allow if input.attributes.request.http.host == "192.0.2.30:8088"
REGO
    template egress "$root/packaging/helm/peername" --set mode=egress --set "egress.allowClient={$balancer}" \
        --set 'egress.allowDestination={192.0.2.30:8088}' \
        --set-file "egress.opa.policy=$STORAGE/policy.rego" --set-file "egress.caCertificate=$STORAGE/ca.crt"
    secrets=$ca play "$STORAGE/rendered.yml"
    ip address add 192.0.2.30/32 dev lo
    python3 -m http.server --bind 192.0.2.30 --directory "$root/docs" 8088 &
    wait_for "readiness" podman exec egress-peername-peername peername doctor --admin unix:/run/peername/admin.sock
    wait_for "a page" front curl --silent --fail --proxy "$proxy" http://192.0.2.30:8088/container.md --output "$STORAGE/page"
    assert_equal "$(<"$STORAGE/page")" "$(<"$root/docs/container.md")"
    # The policy does not allow this host. A client that calls itself a browser gets the denial inside the tunnel, over TLS with
    # a certificate of the Secret's authority, which the ConfigMap gives to clients.
    assert_equal "$(front curl --silent --proxy "$proxy" --cacert "$STORAGE/ca.crt" --user-agent Mozilla/5.0 \
        --output /dev/null --write-out '%{http_code}' https://denied.example/)" 403
    assert_equal "$(front curl --silent --noproxy '*' --output /dev/null --write-out '%{http_code}' --max-time 2 \
        http://$pod:8181/)" 000
}

load "$archive"
build_nginx
build_opa
run_tests sidecar_of_another_chart_names_the_client node_proxy_names_the_client egress_forwards_what_the_policy_allows
