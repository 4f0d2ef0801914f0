#!/bin/bash
# Tests the container image with podman: tests/containers/image.sh IMAGE.tar BINARY…, as root.
#
# packaging/oci/build.sh has made IMAGE.tar of the binaries. The clients, the balancer (HAProxy) and the server (nginx) are
# real, and the evidence is nginx's own log. The script calls itself again inside podman.sh.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
if [[ -z ${STORAGE:-} ]]; then
    image=$(realpath "$1")
    shift
    exec "$here/podman.sh" "$here/image.sh" "$image" "$(realpath --canonicalize-existing "$@")"
fi
# shellcheck source=tests/containers/pods.sh
source "$here/pods.sh"
archive=$1
mapfile -t binaries <<<"$2"

image_has_the_program_and_no_other() {
    assert_equal "$(cd "$(podman image mount localhost/peername)" && find . -type f | sort)" "./etc/ssl/certs/ca-certificates.crt
./usr/bin/peername
./usr/share/doc/peername/LICENSE-APACHE
./usr/share/doc/peername/LICENSE-MIT"
    assert_equal "$(podman image inspect --format '{{.User}}' localhost/peername)" 65532:65532
    (($(stat -c %s "$archive") < ${#binaries[@]} * 15000000)) || fail "$(stat -c %s "$archive") bytes"
}

same_binaries_make_the_same_image() {
    CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt "$root/packaging/oci/build.sh" "$STORAGE/again.tar" "${binaries[@]}"
    assert_equal "$(tar -xOf "$STORAGE/again.tar" index.json)" "$(tar -xOf "$archive" index.json)"
}

commands_without_spoofing_need_no_capability() {
    podman run --rm --read-only --cap-drop all --security-opt no-new-privileges --network none \
        localhost/peername forward --listen 127.0.0.1:8080 --to 192.0.2.1:80 >"$STORAGE/log" 2>&1 &
    wait_for "forward to listen" grep -q '"listening' "$STORAGE/log"
}

# A container as containerd and CRI-O start it for a pod with `add: [NET_RAW]`, an ordinary user and
# `allowPrivilegeEscalation: false`: the capabilities are permitted until execve(2), and never ambient. podman would make them
# ambient, so the runtimes are run without it.
kubernetes_grants_an_ordinary_user_what_the_file_names() {
    local runtime
    for runtime in runc crun; do
        started_by "$runtime" '["CAP_NET_RAW", "CAP_NET_BIND_SERVICE"]'
        wait_for "proxy under $runtime" grep -q '"listening' "$STORAGE/log"
        started_by "$runtime" '["CAP_NET_BIND_SERVICE"]'
        wait_for "a refusal under $runtime" grep -q 'needs CAP_NET_RAW' "$STORAGE/log"
    done
}

# Starts the proxy in a container of this runtime, with these capabilities.
started_by() {
    local runtime=$1 capabilities=$2 bundle
    bundle=$(mktemp --directory --tmpdir="$STORAGE")
    cp --archive "$(podman image mount localhost/peername)" "$bundle/rootfs"
    mkdir "$bundle"/rootfs/{proc,dev,sys}
    (cd "$bundle" && "$runtime" spec)
    python3 - "$bundle/config.json" "$capabilities" <<'PYTHON'
import json, sys
path, capabilities = sys.argv[1:]
config = json.load(open(path))
granted = json.loads(capabilities)
config["linux"].pop("resources", None)
config["process"].update(
    terminal=False,
    user={"uid": 65532, "gid": 65532},
    noNewPrivileges=True,
    capabilities={"bounding": granted, "effective": granted, "permitted": granted},
    args=["/usr/bin/peername", "proxy", "--listen=0.0.0.0:443", "--target=192.0.2.1:80", "--trust=private"],
)
json.dump(config, open(path, "w"))
PYTHON
    : >"$STORAGE/log"
    "$runtime" run --bundle "$bundle" "$(basename "$bundle")" >"$STORAGE/log" 2>&1 </dev/null &
}

server_beside_it_in_a_pod_sees_the_client() {
    play "$root/packaging/kubernetes/sidecar"
    client_is_seen_by web
    podman exec web-peername peername doctor --admin unix:/run/peername/admin.sock
    podman stop --time 30 web-peername
    podman logs web-peername 2>&1 | grep -q drain || fail "it did not drain"
}

# The proxy shares the server's network as in packaging/examples/docker. It runs as an ordinary user.
server_that_shares_its_network_sees_the_client() {
    podman run --detach --name server-nginx --network pods --ip "$pod" \
        --volume "$root/packaging/examples/docker/nginx.conf:/etc/nginx/conf.d/default.conf:ro" localhost/nginx
    podman run --detach --name peername --network container:server-nginx --read-only --tmpfs /run/peername \
        --cap-drop all --cap-add NET_RAW,NET_BIND_SERVICE,NET_ADMIN localhost/peername \
        proxy --listen 0.0.0.0:8000 --target 127.0.0.1:8080 --trust "$balancer" --setup-routes \
        --admin unix:/run/peername/admin.sock
    client_is_seen_by server
    podman exec peername peername doctor --admin unix:/run/peername/admin.sock
    podman rm --force --time 0 peername
    podman rm --force --time 0 server-nginx
}

load "$archive"
build_nginx
run_tests image_has_the_program_and_no_other \
    same_binaries_make_the_same_image \
    commands_without_spoofing_need_no_capability \
    kubernetes_grants_an_ordinary_user_what_the_file_names \
    server_beside_it_in_a_pod_sees_the_client \
    server_that_shares_its_network_sees_the_client
