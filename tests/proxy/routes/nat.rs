//! NAT rules of the host that match the address of a client: they must not apply to the connection to the backend.

use std::net::SocketAddr;

use super::RoutesRig;
use crate::harness::addr::{BALANCER_V4, TARGET_V4, TARGET_V6, addr, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::Lab;
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::connect_client;
use crate::harness::rig::udp;

/// The rules of Docker, libvirt, an OpenVPN installer and Incus, for the network of their guests.
const RULES: [&str; 4] = [
    "for i in 'iptables 172.17.0.0/16' 'ip6tables fd00:17::/64'; do set -- $i
     $1 -t nat -A POSTROUTING -s $2 ! -o br0 -j MASQUERADE; done",
    "for i in 'iptables 172.17.0.0/16' 'ip6tables fd00:17::/64'; do set -- $i
     $1 -t nat -A POSTROUTING -s $2 ! -d $2 -p tcp -j MASQUERADE --to-ports 1024-65535
     $1 -t nat -A POSTROUTING -s $2 ! -d $2 -p udp -j MASQUERADE --to-ports 1024-65535; done",
    "iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -d 172.17.0.0/16 -j SNAT --to-source 10.81.0.1
     ip6tables -t nat -A POSTROUTING -s fd00:17::/64 ! -d fd00:17::/64 -j SNAT --to-source fd81::1",
    "nft 'table inet incus { chain pst { type nat hook postrouting priority srcnat
     ip saddr 172.17.0.0/16 ip daddr != 172.17.0.0/16 masquerade
     ip6 saddr fd00:17::/64 ip6 daddr != fd00:17::/64 masquerade
     }
     }'",
];

#[test]
fn tcp_backends_see_clients_in_a_network_with_nat() {
    for rules in RULES {
        let rig = RoutesRig::new();
        rig.lab.server.run("sh", &["-ec", rules]);
        let _proxy = rig.proxy(8443, &["--setup-routes"]);
        for (client, backend) in [(CLIENT_V4, &rig.v4), (CLIENT_V6, &rig.v6)] {
            let client = addr(client);
            let listen = v4([10, 81, 0, 1], 8443);
            let down = connect_client(&rig.lab, listen, client);
            let up = backend.accept_from(client);
            up.assert_reaches(&down, b"back");
        }
        rig.assert_clients_served(8443);
    }
}

#[test]
fn udp_backends_see_clients_in_a_network_with_nat() {
    for rules in RULES {
        let lab = Lab::without_routes();
        lab.server.run("sh", &["-ec", rules]);
        let listen = v4([10, 81, 0, 1], 8443);
        let args = words(
            "proxy --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --target-v6=[::1]:9000 \
             --trust=private --protocol=udp --setup-routes --log-format=json",
        );
        let _proxy = Peername::start_listening(&lab.server, &args);
        for (client, target) in [(CLIENT_V4, TARGET_V4), (CLIENT_V6, TARGET_V6)] {
            let client = addr(client);
            let backend = DatagramSocket::bind(&lab.server, target);
            let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
            balancer.round_trip(listen, &udp::datagram_header_for(client), &backend, client);
        }
    }
}

const CLIENT_V4: &str = "172.17.0.5:40001";
const CLIENT_V6: &str = "[fd00:17::5]:40001";
