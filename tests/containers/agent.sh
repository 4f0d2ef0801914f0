#!/bin/bash
# Tests `peername agent` with podman: tests/containers/agent.sh PEERNAME, the path of the program; as root.
#
# The containers contain nothing of peername, and need no capability. HAProxy is on another host.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
[[ -n ${STORAGE:-} ]] || exec "$here/podman.sh" "$here/agent.sh" "$(realpath "$1")"
# shellcheck source=tests/containers/pods.sh
source "$here/pods.sh"
peername=$1

containers_of_each_runtime_see_the_client() {
    local runtime
    for runtime in runc crun; do
        podman --runtime "$runtime" run --detach --name "$runtime-nginx" --network pods --ip "$pod" --user 101 --cap-drop all \
            --security-opt no-new-privileges --security-opt "seccomp=$STORAGE/peername.json" \
            --volume "$STORAGE/site.conf:/etc/nginx/conf.d/site.conf:ro" localhost/nginx
        client_is_seen_by "$runtime"
        podman rm --force --time 1 "$runtime-nginx"
    done
}

pod_of_the_restricted_class_sees_the_client() {
    mkdir -p "$STORAGE/seccomp"
    cp "$STORAGE/peername.json" "$STORAGE/seccomp/"
    cat >"$STORAGE/pod.yml" <<POD
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    # podman 4 reads this, and a kubelet what is below.
    seccomp.security.alpha.kubernetes.io/pod: localhost/peername.json
spec:
  securityContext:
    runAsNonRoot: true
    runAsUser: 101
    seccompProfile:
      type: Localhost
      localhostProfile: peername.json
  containers:
    - name: nginx
      image: localhost/nginx
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
      volumeMounts:
        - {name: site, mountPath: /etc/nginx/conf.d}
  volumes:
    - {name: site, hostPath: {path: $STORAGE/conf.d}}
POD
    podman kube play --network pods --ip "$pod" --seccomp-profile-root "$STORAGE/seccomp" "$STORAGE/pod.yml"
    client_is_seen_by web
}

# The containers keep running while the agent is killed and started again.
clients_are_seen_after_each_kill_of_the_agent() {
    podman run --detach --name kept-nginx --network pods --ip "$pod" --security-opt "seccomp=$STORAGE/peername.json" \
        --volume "$STORAGE/site.conf:/etc/nginx/conf.d/site.conf:ro" localhost/nginx
    client_is_seen_by kept
    for _ in 1 2 3; do
        kill -KILL "$(<"$STORAGE/agent.pid")"
        start_agent
        request_through_haproxy "$pod"
    done
}

# The agent runs in a container like that of the chart's DaemonSet, with the default seccomp profile. Then a second agent takes
# over from it.
agent_in_a_container_supervises_others() {
    local usual=(--pid host --network none --cap-drop all --read-only --security-opt no-new-privileges
        --volume "$STORAGE/run:/run/peername-agent")
    mkdir "$STORAGE/run" "$STORAGE/one" "$STORAGE/two"
    podman run --rm --network none --cap-drop all --volume "$STORAGE:/profiles" localhost/agent \
        agent profile --socket "$STORAGE/run/agent.sock" --output=/profiles/contained.json
    pod_of_the_agent one
    wait_for "readiness" podman exec one "$peername" doctor --admin unix:/held/admin.sock
    wait_for "socket" test -S "$STORAGE/run/agent.sock"
    podman run --detach --name server-nginx --network pods --ip "$pod" --security-opt "seccomp=$STORAGE/contained.json" \
        --volume "$STORAGE/site.conf:/etc/nginx/conf.d/site.conf:ro" localhost/nginx
    client_is_seen_by server
    # The agent is killed. Its holder, which is in another container, keeps the descriptors.
    podman kill --signal KILL one
    podman start one
    client_is_seen_by server
    pod_of_the_agent two
    wait_for "takeover" has_logged one "another agent has taken over"
    podman rm --force --time 1 one one-holder
    client_is_seen_by server
}

# Starts an agent and its holder, with the options `usual` of the caller.
pod_of_the_agent() {
    podman run --detach --name "$1-holder" "${usual[@]}" --volume "$STORAGE/$1:/held" localhost/agent \
        agent hold --holder=/held/agent.sock
    podman run --detach --name "$1" "${usual[@]}" --volume "$STORAGE/$1:/held" --cap-add SYS_PTRACE --cap-add SYS_ADMIN --cap-add NET_ADMIN \
        localhost/agent agent --trust "$balancer" --holder=/held/agent.sock --on-takeover=wait --admin=unix:/held/admin.sock
}

has_logged() {
    podman logs "$1" 2>&1 | grep --quiet "$2"
}

start_agent() {
    "$peername" agent --listen "unix:$STORAGE/agent.sock" --trust "$balancer" 2>>"$STORAGE/agent.log" &
    echo $! >"$STORAGE/agent.pid"
}

build_agent() {
    local container mount
    container=$(buildah from scratch)
    mount=$(buildah mount "$container")
    copy_program "$mount" "$peername"
    mkdir -p "$mount/profiles" "$mount/run/peername-agent" "$mount/held"
    buildah config --entrypoint "[\"$peername\"]" --user 0 "$container"
    buildah commit --quiet --rm "$container" localhost/agent >"$STORAGE/log"
}

site() {
    echo "server { listen $1; location / { return 200 \"you are \$remote_addr\"; } }"
}

connect_front
build_nginx
build_agent
site 8000 >"$STORAGE/site.conf"
mkdir "$STORAGE/conf.d"
cp "$STORAGE/site.conf" "$STORAGE/conf.d/"
start_agent
trap 'cat "$STORAGE/agent.log"' EXIT
"$peername" agent profile --socket "$STORAGE/agent.sock" >"$STORAGE/peername.json"
run_tests containers_of_each_runtime_see_the_client pod_of_the_restricted_class_sees_the_client \
    clients_are_seen_after_each_kill_of_the_agent agent_in_a_container_supervises_others
