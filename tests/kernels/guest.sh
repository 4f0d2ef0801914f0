#!/bin/bash
# Runs in the guest after its root is mounted. Runs the tests of one feature after the other.
# /share/features has a line for each: its number, and the names of its tests.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t devpts devpts /dev/pts 2>/dev/null || { mkdir -p /dev/pts; mount -t devpts devpts /dev/pts; }
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf fd/1 /dev/stdout
ln -sf fd/2 /dev/stderr
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t securityfs securityfs /sys/kernel/security
# Sets PATH and HOME as on the host, where the compilers are that some tests need; the paths of the binaries; and LIMIT.
source /share/environment
modprobe --quiet --all tun fuse
ip link set lo up
hostname guest
ulimit -n 20000

cd "$REPOSITORY" || exit 1
uname -r >/share/release
"$PEERNAME" doctor --protocol both >/share/doctor 2>&1
"$PEERNAME" doctor --confinement >>/share/doctor 2>&1
while read -r number tests; do
    # shellcheck disable=SC2086
    timeout "$LIMIT" "$E2E" --exact --test-threads 1 $tests >"/share/$number.log" 2>&1
    echo "$number $?" >>/share/results
done </share/features
dmesg >/share/dmesg
sync
echo o >/proc/sysrq-trigger
sleep 60
