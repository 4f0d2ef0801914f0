# Functions for the tests of pods, which source this file inside tests/containers/podman.sh.
# shellcheck shell=bash

tools=${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../../target}/tools
# The client and the balancer are on another host, the namespace `front`; pods have a bridge.
client=203.0.113.7
balancer=10.99.0.10
host=10.99.0.1
pod=10.123.0.9
export DISABLE_HC_SYSTEMD=true

# Loads the image of this machine's platform as localhost/peername.
load() {
    buildah pull --quiet "oci-archive:$1" >"$STORAGE/id"
    podman tag "$(<"$STORAGE/id")" localhost/peername:0.1.0 localhost/peername:latest
    connect_front
}

# Makes the network of pods, and the other host.
connect_front() {
    podman network create --subnet 10.123.0.0/24 pods >"$STORAGE/log"
    ip netns add front
    ip link add front type veth peer name eth0 netns front
    ip address add $host/24 dev front
    ip link set front up
    ip -n front address add $balancer/24 dev eth0
    ip -n front address add $client/32 dev lo
    ip -n front link set lo up
    ip -n front link set eth0 up
    ip -n front route add default via $host
}

front() {
    ip netns exec front "$@"
}

# Builds localhost/nginx of this machine's nginx, with the paths of nginxinc/nginx-unprivileged.
build_nginx() {
    local container mount
    container=$(buildah from scratch)
    mount=$(buildah mount "$container")
    copy_program "$mount" /usr/sbin/nginx
    mkdir -p "$mount"/etc/nginx/conf.d "$mount"/var/log/nginx "$mount"/var/lib/nginx
    install -d -m 1777 "$mount/tmp"
    nginx_configuration >"$mount/etc/nginx/nginx.conf"
    buildah config --entrypoint '["/usr/sbin/nginx", "-c", "/etc/nginx/nginx.conf", "-e", "/dev/stderr"]' --user 101 "$container"
    buildah commit --quiet --rm "$container" localhost/nginx >"$STORAGE/log"
}

nginx_configuration() {
    cat <<'CONF'
daemon off;
pid /tmp/nginx.pid;
error_log /dev/stderr;
events {}
http {
    access_log /dev/stdout;
    client_body_temp_path /tmp/body;
    proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    include /etc/nginx/conf.d/*.conf;
}
CONF
}

# Builds localhost/opa, which is one static program.
build_opa() {
    local container
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$tools/opa" /opa
    buildah config --entrypoint '["/opa"]' "$container"
    buildah commit --quiet --rm "$container" localhost/opa >"$STORAGE/log"
}

# Copies a program of this machine, with the libraries that it needs.
copy_program() {
    local mount=$1 program=$2 file
    for file in "$program" $(ldd "$program" | grep -o '/[^ ]*'); do
        install -D "$file" "$mount$file"
    done
}

# Runs the pods of manifests (podman kube play), from a file or from a directory for kustomize. Images are those of this
# machine, and Secrets have the files in the directory $secrets. Arguments after the first replace the network.
play() {
    local manifests=$STORAGE/manifests.yml from=$1 network=(--network pods --ip "$pod")
    shift
    [[ $# -eq 0 ]] || network=("$@")
    if [[ -d $from ]]; then
        "$tools/manifests" kustomize "$from" >"$manifests"
    else
        cp "$from" "$manifests"
    fi
    "$tools/manifests" pods "${secrets:-}" <"$manifests" |
        sed 's|image: .*nginx.*|image: localhost/nginx|; s|image: .*/opa:.*|image: localhost/opa|; s|image: peername|image: localhost/peername|' \
            >"$STORAGE/pods.yml"
    podman kube play "${network[@]}" "$STORAGE/pods.yml"
}

# Sends a request through HAProxy, which sends a PROXY header to this address. Asserts that the server's answer names the
# client.
request_through_haproxy() {
    cat >"$STORAGE/haproxy.cfg" <<CONF
defaults
    mode tcp
    timeout connect 5s
    timeout client 10s
    timeout server 10s
listen front
    bind $balancer:80
    server peername $1:8000 send-proxy-v2
CONF
    ip netns exec front haproxy -f "$STORAGE/haproxy.cfg" -db &
    wait_for "an answer" front curl --silent --fail --max-time 5 --interface $client http://$balancer --output "$STORAGE/answer"
    kill $!
    assert_equal "$(<"$STORAGE/answer")" "you are $client"
}

# Sends a request through HAProxy. Asserts that the answer and the log of the container NAME-nginx name the client.
client_is_seen_by() {
    local name=$1
    request_through_haproxy $pod
    podman logs "$name-nginx" 2>&1 | grep "^$client .*GET / HTTP/1.1" || fail "the log of nginx: $(podman logs "$name-nginx" 2>&1)"
}

run_tests() {
    local test code
    for test; do
        echo "test: ${test//_/ }"
        # The test does not run in a condition, in which `set -e` has no effect.
        set +e
        (set -e && "$test") >"$STORAGE/output" 2>&1
        code=$?
        set -e
        [[ $code -eq 0 ]] || {
            cat "$STORAGE/output" "$STORAGE/log"
            podman ps --all
            podman ps --all --quiet | xargs --no-run-if-empty --max-args 1 podman logs --names
            exit 1
        }
        podman pod rm --all --force >"$STORAGE/output"
        podman rm --all --force --time 1 >"$STORAGE/output"
    done
    echo "$# passed, 0 failed"
}

wait_for() {
    local what=$1 deadline=$((SECONDS + 20))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || fail "no $what: $(cat "$STORAGE/log")"
        sleep 0.1
    done
}

assert_equal() {
    [[ $1 == "$2" ]] || fail "$1
instead of
$2"
}

fail() {
    echo "FAILED: $1" >&2
    exit 1
}
