# Runs a server in a container of runc as an ordinary user, in a user namespace of its own, and connects to it as its balancer
# does: rootless.sh BUNDLE, a folder with `profile.json`.
set -euo pipefail

cd "$1"
mkdir root
[[ -n $(ip link show dev lo up) ]] || ip link set lo up
mount --rbind / root
server='python3 -um http.server 8443 & sleep 1
    printf "PROXY TCP4 203.0.113.7 198.51.100.10 4711 443\r\nGET / HTTP/1.0\r\n\r\n" | nc -q1 127.0.0.1 8443'
python3 - "$server" <<'PYTHON'
import json, sys
config = {
    "ociVersion": "1.0.2",
    "process": {
        "args": ["sh", "-c", sys.argv[1]],
        "cwd": "/",
        "env": ["PATH=/usr/bin:/bin"],
        "user": {"uid": 0, "gid": 0},
        "noNewPrivileges": True,
    },
    "root": {"path": "root", "readonly": True},
    "mounts": [
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/proc", "type": "proc", "source": "proc"},
    ],
    "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}], "seccomp": json.load(open("profile.json"))},
}
json.dump(config, open("config.json", "w"))
PYTHON
exec runc --rootless true --root "$1/state" run --bundle "$1" rootless
