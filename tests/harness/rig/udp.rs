//! The usual arrangement for UDP: proxy, two backends, a balancer's socket.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::proxy::front_of;
use crate::harness::addr::{BALANCER_V4, LISTEN_V4, TARGET_V4, TARGET_V6};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::peername::{Peername, words};

/// Proxy, backends, one balancer socket and hosts, dropped in this order.
#[derive(Debug)]
pub(crate) struct UdpRig {
    pub(crate) proxy: Peername,
    pub(crate) backend_v4: DatagramSocket,
    pub(crate) backend_v6: DatagramSocket,
    pub(crate) balancer: DatagramSocket,
    pub(crate) lab: Lab,
}

impl UdpRig {
    pub(crate) fn new(args: &[&str]) -> Self {
        Self::start_through(&[], args)
    }

    pub(crate) fn start_through(through: &[&str], args: &[&str]) -> Self {
        let lab = Lab::new();
        Self {
            backend_v4: DatagramSocket::bind(&lab.server, TARGET_V4),
            backend_v6: DatagramSocket::bind(&lab.server, TARGET_V6),
            balancer: DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0)),
            proxy: Peername::udp_proxy(&lab, through, args),
            lab,
        }
    }

    /// Binds a further socket of the balancer.
    pub(crate) fn add_balancer_socket(&self) -> DatagramSocket {
        DatagramSocket::bind(&self.lab.balancer, SocketAddr::new(BALANCER_V4, 0))
    }

    /// The backend of the client's family.
    pub(crate) fn backend(&self, client: SocketAddr) -> &DatagramSocket {
        if client.is_ipv4() {
            &self.backend_v4
        } else {
            &self.backend_v6
        }
    }

    /// Sends bytes from the balancer, as they are.
    pub(crate) fn send_from_balancer(&self, parts: &[&[u8]]) {
        self.balancer.send(LISTEN_V4, parts);
    }

    /// Sends a datagram of the balancer; asserts that the backend gets its payload, from this client.
    #[track_caller]
    pub(crate) fn assert_delivered(&self, header: &[u8], payload: &[u8], client: SocketAddr) {
        self.send_from_balancer(&[header, payload]);
        self.backend_v4.expect_datagram(payload, client);
    }

    /// Asserts that this reply of the backend to a client arrives at the balancer.
    #[track_caller]
    pub(crate) fn assert_reply(&self, client: SocketAddr, payload: &[u8]) {
        self.backend_v4.send(client, &[payload]);
        self.balancer.expect_datagram(payload, LISTEN_V4);
    }

    /// Sends a request of `client` with a v2 header, and its reply; asserts that both arrive.
    #[track_caller]
    pub(crate) fn round_trip(&self, client: SocketAddr) {
        let (header, backend) = (datagram_header_for(client), self.backend(client));
        self.balancer
            .round_trip(LISTEN_V4, &header, backend, client);
    }

    /// Stops the proxy and returns how many datagrams it dropped, by reason.
    #[track_caller]
    pub(crate) fn stop_and_count_drops(&mut self) -> BTreeMap<String, u64> {
        let totals = self.stop();
        let dropped = totals["datagrams_dropped"].as_str().expect("text");
        let parse = |pair: &str| {
            let (reason, count) = pair.split_once('=').expect("reason=count");
            (reason.to_owned(), count.parse().expect("a count"))
        };
        dropped.split_whitespace().map(parse).collect()
    }

    /// Stops the proxy and returns the last line of its log: the totals.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> Value {
        self.proxy.stop()
    }
}

/// The header that a balancer puts before a datagram of this client.
pub(crate) fn datagram_header_for(client: SocketAddr) -> Vec<u8> {
    header_bytes::v2_udp(client, front_of(client))
}

/// Starts `forward` on the balancer with these options, in front of the usual proxy.
pub(crate) fn start_forward(lab: &Lab, options: &[&str]) -> Peername {
    let args = words(
        "forward --protocol=udp --listen=203.0.113.1:80 --listen=[2001:db8:9::1]:80 \
         --to=10.81.0.1:8443",
    );
    Peername::start_listening(&lab.balancer, &[&args, options].concat())
}

/// Each dialect: the option of [`start_forward`], and that of the proxy.
pub(crate) const DIALECTS: [(&str, &str); 3] = [
    ("--udp-header=each", "--udp-header=each"),
    ("--udp-header=first", "--udp-header=first"),
    ("--proxy-version=spp", "--udp-header=spp"),
];
