//! The parameters of a load.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::host::procfs::ProcessTree;
use crate::wire::transport::Transport;

/// Traffic patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// 64 B there, 64 B back, over and over on the same connections
    Pingpong,
    /// As many bytes as possible, both ways at once
    Bulk,
    /// Connect, send, receive, close
    Churn,
    /// Many connections without traffic
    Idle,
    /// As pingpong, in datagrams; a lost one is abandoned after a timeout
    UdpEcho,
    /// As udp-echo, with all clients behind one socket
    UdpEchoShared,
    /// As udp-echo, with 8 datagrams of each client in flight
    UdpEchoWindow,
    /// As many datagrams of 1,200 B as possible, one way
    UdpStream,
}

impl Workload {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Pingpong | Self::Bulk | Self::Churn | Self::Idle => Transport::Tcp,
            Self::UdpEcho | Self::UdpEchoShared | Self::UdpEchoWindow | Self::UdpStream => {
                Transport::Udp
            }
        }
    }
}

/// What precedes the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preface {
    /// Nothing
    None,
    /// A PROXY header, with another client on each connection: a version 1 line at its start, or a version 2 header
    /// in each datagram
    Proxy,
}

/// The parameters of a load.
#[derive(Clone, Debug)]
pub(crate) struct LoadSpec {
    pub(crate) target: SocketAddr,
    /// The backend's own address, past the proxy. Only UDP workloads use it, to query what arrived.
    pub(crate) backend: SocketAddr,
    pub(crate) preface: Preface,
    pub(crate) connections: usize,
    pub(crate) duration: Duration,
    /// The number of earlier turns: a workload that opens connections has new clients in each turn.
    pub(crate) turn: u32,
    /// The proxy, if there is one.
    pub(crate) watch: Option<ProcessTree>,
}
