//! NAT rules as other programs install them, each with clients that it applies to on loopback.

use std::net::SocketAddr;

use crate::harness::addr::{fresh_client_v4, fresh_client_v6};
use crate::harness::lab::Host;

/// The rules of one program.
#[derive(Debug)]
pub(crate) struct NatRules {
    pub(crate) program: &'static str,
    /// Commands of a shell.
    install: &'static str,
    /// Clients that the rules masquerade.
    clients: [&'static str; 2],
}

impl NatRules {
    pub(crate) fn install(&self, host: &Host) {
        host.run("sh", &["-ec", self.install]);
    }

    /// Removes the rules of all programs.
    pub(crate) fn remove(host: &Host) {
        host.nft("flush ruleset");
    }

    /// A client of each family, with a fresh port.
    pub(crate) fn clients(&self) -> [SocketAddr; 2] {
        let [v4, v6] = self.clients.map(|ip| ip.parse().expect("an address"));
        [
            SocketAddr::new(v4, fresh_client_v4().port()),
            SocketAddr::new(v6, fresh_client_v6().port()),
        ]
    }
}

/// The rules of programs that masquerade on loopback, too. firewalld does not: its rules have `oifname != "lo"`.
pub(crate) const ON_LOOPBACK: [NatRules; 6] = [
    NatRules {
        program: "Docker 24 to 28, by iptables",
        install: "
            iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
            ip6tables -t nat -A POSTROUTING -s fd17::/64 ! -o docker0 -j MASQUERADE",
        clients: ["172.17.0.5", "fd17::5"],
    },
    NatRules {
        program: "Docker 29, by nftables",
        install: "
            nft add table ip docker-bridges
            nft add chain ip docker-bridges post '{ type nat hook postrouting priority srcnat; }'
            nft add rule ip docker-bridges post oifname != docker0 ip saddr 172.17.0.0/16 counter masquerade
            nft add table ip6 docker-bridges
            nft add chain ip6 docker-bridges post '{ type nat hook postrouting priority srcnat; }'
            nft add rule ip6 docker-bridges post oifname != docker0 ip6 saddr fd17::/64 counter masquerade",
        clients: ["172.17.0.5", "fd17::5"],
    },
    NatRules {
        program: "libvirt",
        install: "
            for p in tcp udp; do
            iptables -t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p $p -j MASQUERADE --to-ports 1024-65535
            ip6tables -t nat -A POSTROUTING -s fd22::/64 ! -d fd22::/64 -p $p -j MASQUERADE --to-ports 1024-65535
            done",
        clients: ["192.168.122.5", "fd22::5"],
    },
    NatRules {
        program: "the OpenVPN installer",
        install: "
            iptables -t nat -A POSTROUTING -s 10.8.0.0/24 ! -d 10.8.0.0/24 -j SNAT --to 10.81.0.1
            ip6tables -t nat -A POSTROUTING -s fddd:1194:1194:1194::/64 ! -d fddd:1194:1194:1194::/64 -j SNAT --to fd81::1",
        clients: ["10.8.0.2", "fddd:1194:1194:1194::2"],
    },
    NatRules {
        program: "k3s and flannel",
        install: "
            iptables -t nat -N FLANNEL-POSTRTG
            iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG
            iptables -t nat -A FLANNEL-POSTRTG -s 10.42.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
            iptables -t nat -A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.0.0/16 -j MASQUERADE --random-fully
            ip6tables -t nat -A POSTROUTING -s 2001:cafe:42::/56 ! -d ff00::/8 -j MASQUERADE --random-fully",
        clients: ["10.42.1.5", "2001:cafe:42::5"],
    },
    NatRules {
        program: "a rule for the backend's port",
        install: "
            for p in tcp udp; do
            iptables -t nat -A POSTROUTING -s 192.168.7.0/24 -p $p --dport 9000 -j MASQUERADE
            ip6tables -t nat -A POSTROUTING -s fd07::/64 -p $p --dport 9000 -j MASQUERADE
            done",
        clients: ["192.168.7.5", "fd07::5"],
    },
];
