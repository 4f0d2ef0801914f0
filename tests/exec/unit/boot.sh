#!/bin/bash
# Boots systemd in a container with this machine's files and Debian's units. Changes stay in memory. The network is that of the
# caller. Runs in mount and PID namespaces of its own.
# Arguments: an empty directory, peername, its library.
set -euo pipefail
directory=$1 binary=$2 library=$3

# With version 1 of control groups, or both versions, systemd in a container does not notice that a unit's last process has
# ended.
[[ $(stat --file-system --format=%T /sys/fs/cgroup) == cgroup2fs ]] || mount -t cgroup2 cgroup2 /sys/fs/cgroup

mount -t tmpfs tmpfs "$directory"
root=$directory/root
mkdir "$directory/upper" "$directory/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" overlay "$root"

mkdir -p "$root/usr/lib/peername"
install -m 755 "$binary" "$root/usr/bin/peername"
install -m 644 "$library" "$root/usr/lib/peername/libpeername.so"

# The servers listen on the network, and log their clients. In these files a later line replaces an earlier one.
etc=$root/etc
rm -f "$etc"/systemd/system/*.d/peername.conf
printf '%s\n' 'bind 0.0.0.0' 'protected-mode no' >>"$etc/redis/redis.conf"
for cluster in "$etc"/postgresql/*/main; do
    echo "listen_addresses = '*'" >"$cluster/conf.d/network.conf"
done
printf '%s\n' 'inet_interfaces = all' 'inet_protocols = ipv4' >>"$etc/postfix/main.cf"
echo 'ssl = no' >"$etc/dovecot/local.conf"
printf '%s\n' 'listener 1883' 'allow_anonymous true' >"$etc/mosquitto/conf.d/network.conf"
mkdir -p "$etc/systemd/system/apache2.service.d"
printf '%s\n' '[Service]' 'PIDFile=/run/apache2/apache2.pid' >"$etc/systemd/system/apache2.service.d/override.conf"
echo 'Listen 8080' >"$etc/apache2/ports.conf"
sed -i 's/\*:80/*:8080/' "$etc"/apache2/sites-available/000-default.conf
cat >"$etc/haproxy/haproxy.cfg" <<'END'
defaults
    mode http
    timeout client 5s
    timeout connect 5s
    timeout server 5s
frontend front
    bind :8081
    http-request return status 200 content-type text/plain lf-string "%[src]:%[src_port]"
END

cp "${0%/*}/confined.service" "$etc/systemd/system/"

# systemd-nspawn denies pidfd_getfd(2) by default.
exec systemd-nspawn --directory="$root" --boot --machine=peername --register=no --keep-unit --quiet --console=pipe \
    --resolv-conf=off --timezone=off --link-journal=no --system-call-filter=pidfd_getfd -- --unit=basic.target </dev/null
