#!/bin/bash
# Installs what the black-box tests drive: the servers and balancers they put on either side of
# peername, and the tools they build networks with. Debian and its children only; what Debian doesn't have is
# built into target/tools.
#
# The servers must not be started: they would listen on ports of this machine, and every test starts
# its own. Debian asks /usr/sbin/policy-rc.d before it starts anything (invoke-rc.d(8)), so this script puts one
# there while apt runs, unless the machine has its own, and removes it at its end. Nor are
# they left enabled, so that the next boot starts none of them.
set -euo pipefail

packages=(
    iproute2         # ip: namespaces, veth pairs, routes
    nftables         # nft: a backend that does not answer, TPROXY rules
    iptables         # the TPROXY rules of another README, word for word
    util-linux       # setpriv, unshare, runuser
    libcap2-bin      # capsh, getcap: what is left of our privileges
    procps           # sysctl
    busybox-static   # syslogd, for the log that fail2ban reads; the tests of a release take it, too
    fail2ban
    ethtool          # checksums that devices don't add
    faketime         # what is remembered for minutes
    curl             # --haproxy-protocol, and the client of the web servers
    openssl          # self-signed certificates
    haproxy          # sender: v1, v2, v2 with TLS TLVs, health checks
    nginx            # server, and sender through its stream module
    libnginx-mod-stream
    redis-server
    openssh-server
    openssh-client
    postgresql
    postfix          # a master that empties its children's environment
    dovecot-core     # the same
    dovecot-imapd
    sudo             # and a program that does it on purpose
    cron             # what starts servers with an environment of its own
    runit            # the same, and starts them again
    runc             # containers that the agent supervises
    crun
    strace           # the order of system calls at a start
    man-db           # the manual pages
    netcat-openbsd   # the README's backend and balancer
    socat
    unbound          # a name server behind the proxy, and its log of clients
    dnsdist          # sender of PROXY v2 on every datagram
    bind9-dnsutils   # dig
    iperf            # version 2: UDP in both directions, with its senders
    ngtcp2-client    # QUIC: gtlsclient, gtlsserver
    ngtcp2-server
    mptcpize         # lets servers listen by MPTCP
    python3
    tinyproxy-bin       # an upstream proxy
    python3-grpcio      # gRPC, client and server, through the intercepting proxy
    python3-cryptography # certificates that no client may take
    python3-h2          # WebSocket over HTTP/2
    python3-websockets
    python3-requests
    python3-pip      # a package manager in a jail
    chromium         # a browser, and its block page
    prometheus       # prometheus, promtool: the alert rules and the dashboard that are shipped
    libnss3-tools    # certutil: its trusted roots
    systemd          # systemd-analyze: whether the units that are shipped are right
    systemd-container # systemd-nspawn: the units of Debian's servers, in a copy of this machine that systemd boots
    mosquitto
    nodejs
    gcc              # a server of the tests' own
    libc6-dev
    musl-tools       # the same with another C library
    binutils         # readelf, nm: what the preloaded library needs
    apache2
    apparmor         # the parser of the profile that is shipped
    apache2-utils    # htpasswd
    erlang-base
    default-jdk-headless
    gh               # a client of an API, in a jail
)

# A Go that was installed otherwise will do.
command -v go >/dev/null || packages+=(golang-go)

# The packages of Node's authors have npm in them, and conflict with Debian's.
command -v npm >/dev/null || packages+=(npm)

# Clients of APIs, in a jail. The packages of their authors conflict with Debian's.
command -v aws >/dev/null || packages+=(awscli)
command -v kubectl >/dev/null || packages+=(kubernetes-client)

# What Debian doesn't have, and comes from its authors as source: each a Go module beside the tests that drive
# it, with a go.sum that says what exactly is built. OPA takes a few minutes, once.
build_tools() {
    local here tools
    here=$(cd "$(dirname "$0")" && pwd)
    tools=${CARGO_TARGET_DIR:-$here/../target}/tools
    mkdir -p "$tools"
    tools=$(cd "$tools" && pwd)
    build "$here/harness/check/ext_authz" "$tools/ext_authz" .
    build "$here/harness/programs/collector" "$tools/collector" .
    build "$here/harness/check/opa" "$tools/opa" -tags=opa_no_oci github.com/open-policy-agent/opa
}

build() {
    local module=$1 out=$2
    shift 2
    [[ -z $(find "$module" -newer "$out" 2>&1) ]] && return
    fetch_go
    echo "setup: building $(basename "$out")"
    (cd "$module" && CGO_ENABLED=0 GOWORK=off "$go" build -trimpath -o "$out" "$@") || {
        echo "setup: $("$go" version): can it reach its module proxy?" >&2
        exit 1
    }
    touch "$out"
}

# Since 1.21 Go fetches the version that a module asks for, as it fetches the module. Debian 12 has an older one,
# for which the same is done here, from the same place.
fetch_go() {
    go=go
    printf '%s\n' go1.21 "$(go env GOVERSION)" | sort --version-sort --check=quiet && return
    go=$tools/go/bin/go
    [[ -x $go ]] && return
    local version=v0.0.1-go1.26.0.linux sum zip=$tools/go.zip
    case $(dpkg --print-architecture) in
        amd64) version+=-amd64 sum=38461905b98c59173672814302e222ab43b652274bc0c95817b08b71ab66b705 ;;
        arm64) version+=-arm64 sum=4c3f961bc257ff52e7a425166f9f75015f645dff071d01a81823455ffe646609 ;;
        *) echo "setup: Go 1.21 or later is needed" >&2 && exit 1 ;;
    esac
    echo "setup: fetching Go 1.26 (Debian's is $(go env GOVERSION))"
    curl --silent --show-error --fail --location --output "$zip" \
        "https://proxy.golang.org/golang.org/toolchain/@v/$version.zip"
    echo "$sum  $zip" | sha256sum --check --quiet
    rm -rf "$tools/go.part" "$tools/go"
    python3 -m zipfile --extract "$zip" "$tools/go.part"
    # A module's archive has no modes.
    chmod -R +x "$tools/go.part/golang.org/toolchain@$version/"{bin,pkg/tool}
    mv "$tools/go.part/golang.org/toolchain@$version" "$tools/go"
    rm -rf "$zip" "$tools/go.part"
}

installed() { dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'; }

missing=()
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    build_tools
    exit 0
fi

echo "setup: missing: ${missing[*]}"
if [[ $(id -u) -ne 0 ]]; then
    echo "setup: run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

# --no-upgrade: what is there already stays as it is.
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --yes --quiet --no-install-recommends --no-upgrade "${missing[@]}")
"${install[@]}" || { apt-get update --quiet && "${install[@]}"; }

for package in "${missing[@]}"; do
    case $package in
        fail2ban | haproxy | mosquitto | nginx | redis-server | postgresql | unbound | dnsdist | prometheus | apache2 | postfix | cron) unit=$package ;;
        openssh-server) unit=ssh ;;
        ngtcp2-server) unit=ngtcp2d ;;
        dovecot-core) unit=dovecot ;;
        *) continue ;;
    esac
    systemctl disable --quiet "$unit" 2>/dev/null || true # no systemd, nothing to disable
done

build_tools
