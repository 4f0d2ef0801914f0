#!/bin/bash
# Runs a program in a container of runc that `peername agent` supervises, in this network:
# in-container.sh PEERNAME PROGRAM [ARGUMENT…]
#
# Everything ends with this process: the agent, and the container in a PID namespace below the agent's.
set -euo pipefail

if [[ $1 == --version ]]; then
    exec runc --version
fi
if [[ $$ -ne 1 ]]; then
    exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
peername=$(realpath "$1")
shift
# Control groups outlive their processes: remove those of earlier runs.
find /sys/fs/cgroup -depth -path '*/peername-bench/*' -type d -exec rmdir {} + 2>/dev/null || true
work=$(mktemp -d)
mkdir "$work/root"
mount --bind / "$work/root"
"$peername" agent --listen "unix:$work/agent.sock" --trust loopback --ports 8443 &
until [[ -S $work/agent.sock ]]; do
    sleep 0.01
done
profile=$("$peername" agent profile --socket "$work/agent.sock")
arguments=$(python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@")
cat >"$work/config.json" <<JSON
{
  "ociVersion": "1.0.2",
  "process": {"args": $arguments, "cwd": "/", "env": ["PATH=/usr/bin:/bin"], "user": {"uid": 0, "gid": 0}},
  "root": {"path": "$work/root", "readonly": true},
  "mounts": [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}
  ],
  "linux": {
    "cgroupsPath": "/peername-bench/$(basename "$work")",
    "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "mount"}],
    "seccomp": $profile
  }
}
JSON
runc --root "$work/runc" run --bundle "$work" bench
