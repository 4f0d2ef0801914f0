#!/bin/bash
# Runs in the booted container: installs, starts, upgrades and removes the Debian package, with HAProxy and sshd.
# Prints a line for each expectation.
check() {
    local what=$1
    shift
    if "$@"; then echo "ok   $what"; else echo "FAIL $what: $*"; fi
}
# Waits up to ten seconds for a command to succeed.
wait_until() {
    local _
    for _ in {1..100}; do "$@" && return; sleep 0.1; done
    return 1
}

network() {
    ip netns add balancer
    ip netns add client
    ip link add lan type veth peer name lan netns balancer
    ip -n balancer link add wan type veth peer name eth0 netns client
    ip addr add 192.0.2.20/24 dev lan && ip link set lan up && ip link set lo up
    ip -n balancer addr add 192.0.2.10/24 dev lan && ip -n balancer link set lan up && ip -n balancer link set lo up
    ip -n balancer addr add 203.0.113.1/24 dev wan && ip -n balancer link set wan up
    ip -n client addr add 203.0.113.9/24 dev eth0 && ip -n client link set eth0 up
    ip netns exec balancer haproxy -D -f /packages/haproxy.cfg
}

# Tries to log in, which sshd refuses and logs.
log_in() {
    ip netns exec client ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o ConnectTimeout=5 "$1@203.0.113.1" true 2>&1 |
        grep -q 'Permission denied'
}
is_logged() { journalctl --unit ssh --no-pager | grep -q "Invalid user $1 from 203.0.113.9 "; }
main_pid() { systemctl show --property MainPID --value peername; }
has_rules() { ip rule | grep -q 'proto 211'; }

network
# The three commands of docs/service.md.
check "the package is installed" apt-get install --yes --quiet -o Dpkg::Use-Pty=0 /packages/peername_*_amd64.deb
echo 192.0.2.10 >/etc/peername/allowed-subnets.txt
check "the service starts" systemctl enable --now peername-routes peername

check "ssh reaches sshd" wait_until log_in first
check "sshd logs the true client" wait_until is_logged first
check "the unit is confined by seccomp" grep -q '^Seccomp:.*2' "/proc/$(main_pid)/status"
check "man page" test -s /usr/share/man/man1/peername-proxy.1.gz
check "exec finds its library" sh -c 'peername exec --mode preload --trust loopback -- true'

profile=/etc/apparmor.d/peername
check "an AppArmor that can't read the profile for user namespaces has none" test ! -e $profile

# A unit of the user's own, which SIGUSR2 ends. It stays.
systemd-run --quiet --unit peername-own sleep infinity
# A newer version takes over, and an open connection stays.
before=$(main_pid)
mkfifo /run/typed
ip netns exec client nc 203.0.113.1 22 </run/typed >/run/answer &
exec 9>/run/typed
check "sshd greets" wait_until grep -q SSH-2.0 /run/answer
mkdir /run/newer && dpkg-deb --raw-extract /packages/peername_*_amd64.deb /run/newer
sed -i 's/^Version: .*/&+newer/' /run/newer/DEBIAN/control
dpkg-deb --build /run/newer /packages/newer.deb
mkdir -p /etc/apparmor.d/abi && touch /etc/apparmor.d/abi/4.0
check "a newer package is installed" apt-get install --yes --quiet -o Dpkg::Use-Pty=0 /packages/newer.deb
check "AppArmor 4 has the profile for user namespaces" test -s $profile
is_replaced() { [[ $(main_pid) != "$before" && $(main_pid) != 0 ]]; }
check "the new binary takes over" wait_until is_replaced
check "a unit of another program stays at an upgrade" systemctl is-active --quiet peername-own
check "new connections reach sshd" wait_until log_in second
check "sshd logs their client" wait_until is_logged second
echo nonsense >&9
check "the open connection still leads to sshd" wait_until grep -q 'Invalid SSH identification string' /run/answer
exec 9>&-

check "the package is removed" apt-get remove --yes --quiet peername
check "a unit of another program stays after the removal" systemctl is-active --quiet peername-own
check "its service is stopped" test "$(systemctl is-active peername)" = inactive
check "its rules are removed" sh -c '! ip rule | grep -q "proto 211"'
check "its configuration is kept" test -e /etc/peername/proxy.toml
check "the package is purged" apt-get purge --yes --quiet peername
check "nothing of it is left" sh -c '! find / -xdev -path /packages -prune -o -path /run -prune -o -path /proc -prune -o -name "*peername*" -print | grep .'
journalctl --no-pager --output cat --unit 'peername*'
check "done" true
