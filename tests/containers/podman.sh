#!/bin/bash
# Runs a command in namespaces where podman and buildah work and leave nothing behind: tests/containers/podman.sh COMMAND…
#
# The command has processes, a network and mounts of its own. podman's files are in $STORAGE. Everything ends with the command.
set -euo pipefail

# Control groups outlive their processes, and may be busy for a moment after the last one has exited.
clean_up() {
    rm -rf "$STORAGE"
    for _ in {1..50}; do
        find /sys/fs/cgroup -depth -path '*/libpod_parent*' -type d -exec rmdir {} + 2>/dev/null || true
        [[ -n $(find /sys/fs/cgroup -name libpod_parent -print -quit) ]] || break
        sleep 0.1
    done
}

if [[ -z ${STORAGE:-} ]]; then
    STORAGE=$(mktemp -d)
    export STORAGE
    trap clean_up EXIT
    unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "$@"
    exit
fi

# crun refuses hosts that have both versions of cgroups. A host with version 2 alone has no such mount.
! mountpoint --quiet /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
for dir in /run /var/lib/containers /etc/containers/networks; do
    [[ ! -d $dir ]] || mount -t tmpfs tmpfs "$dir"
done
mkdir -p /run/lock
ip link set lo up
cat >"$STORAGE/containers.conf" <<CONF
[containers]
# podman's own default may be above the limits of this process.
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=$(ulimit -Hu):$(ulimit -Hu)"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
[network]
network_backend = "netavark"
network_config_dir = "$STORAGE/networks"
CONF
cat >"$STORAGE/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$STORAGE/images"
runroot = "/run/containers"
CONF
export CONTAINERS_CONF=$STORAGE/containers.conf CONTAINERS_STORAGE_CONF=$STORAGE/storage.conf
exec "$@"
