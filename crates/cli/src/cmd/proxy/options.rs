//! The options of `peername proxy`, and the configuration they amount to.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::thread::available_parallelism;
use std::time::Duration;

use peername_proxy::addr::Target;
use peername_proxy::config::{
    Config, Datagrams, HeaderLimits, OnCollision, SendProxy, SourcePort, Upstream,
};
use peername_proxy::source::SourcePolicy;
use peername_proxy::trust::TrustList;
use peername_relay::{Limits, Method};

use super::destination;
use crate::cmd::routes::Protocol;
use crate::usage::Usage;
use crate::{logging, value};

/// Options of `peername proxy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen; may be repeated
    #[arg(short, long, value_name = "ADDR", default_value = "0.0.0.0:8443", value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// What is listened for
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
    /// Where IPv4 clients go
    #[arg(short = '4', long, value_name = "ADDR", default_value = "127.0.0.1:443", value_parser = value::address_v4)]
    target_v4: SocketAddr,
    /// Where IPv6 clients go
    #[arg(short = '6', long, value_name = "ADDR", default_value = "[::1]:443", value_parser = value::address_v6)]
    target_v6: SocketAddr,
    #[command(flatten)]
    destination: destination::Args,
    /// Who may send headers: CIDR, address, @FILE, private, loopback or any; may be repeated
    #[arg(short, long, value_name = "WHO")]
    trust: Vec<String>,
    /// Take what TPROXY rules bring, whatever its destination (`peername routes add --tproxy-ports`)
    #[arg(long)]
    listen_transparent: bool,
    /// SO_MARK of every connection to the backend, 0 for none
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = value::mark)]
    mark: u32,
    /// From accept to the complete header
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::timeout)]
    header_timeout: Duration,
    /// The largest header taken, in octets
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..=65551))]
    max_header: u32,
    /// Connections without a header, in all
    #[arg(long, value_name = "N", default_value_t = HeaderLimits::default().pending as u64, value_parser = clap::value_parser!(u64).range(1..))]
    max_pending: u64,
    /// Connections without a header, of one peer
    #[arg(long, value_name = "N", default_value_t = HeaderLimits::default().pending_per_peer as u64, value_parser = clap::value_parser!(u64).range(1..))]
    max_pending_per_peer: u64,
    /// Which claimed sources are refused
    #[arg(long, value_name = "POLICY", default_value = "strict")]
    source_policy: Policy,
    /// Which port connections to the backend come from
    #[arg(long, value_name = "PORT", default_value = "keep")]
    source_port: Port,
    /// When a live connection has the client's address and port already
    #[arg(long, value_name = "WHAT", default_value = "ephemeral")]
    on_port_collision: Collision,
    /// Send a header to the backend too (TCP)
    #[arg(long, value_name = "VERSION")]
    send_proxy: Option<Version>,
    /// From the first SYN to the backend to an established connection
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::timeout)]
    connect_timeout: Duration,
    /// End connections on which nothing moves for so long [default: never; keepalive finds dead peers]
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    idle_timeout: Option<Duration>,
    /// The same once one side has finished sending
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = value::timeout)]
    half_closed_timeout: Duration,
    #[command(flatten)]
    udp: super::udp::Args,
    /// Event loops, each with sockets of its own [default: one a core]
    #[arg(long, visible_alias = "listeners", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// How bytes are moved
    #[arg(long, value_name = "HOW", default_value = "auto")]
    relay: Relay,
    /// Add the routing rules that bring replies back, and remove them at the end
    #[arg(long)]
    pub(super) setup_routes: bool,
    /// How long open connections may go on after SIGTERM; a second SIGTERM ends them
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::duration)]
    pub(super) drain: Duration,
    /// Show the value of this TLV in a connection's log line (TCP), by name or number; may be repeated
    #[arg(long, value_name = "TYPE", value_parser = value::tlv_kind)]
    log_tlv: Vec<u8>,
    #[command(flatten)]
    pub(super) logging: logging::Args,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Policy {
    /// Special, loopback and own addresses
    Strict,
    /// Special addresses only
    AllowLocal,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Port {
    /// The client's own
    Keep,
    /// Any that is free
    Any,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Collision {
    /// Keep the address, take another port
    Ephemeral,
    /// Refuse the connection
    Fail,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Version {
    /// Text
    #[value(name = "v1", alias = "1")]
    V1,
    /// Binary
    #[value(name = "v2", alias = "2")]
    V2,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Relay {
    /// Copy, and splice what carries bulk
    Auto,
    Copy,
    Splice,
}

impl Args {
    /// What the options amount to.
    pub(super) fn config(&self) -> Result<Config, Usage> {
        self.check_addresses()?;
        if self.send_proxy.is_some() && !self.protocol.udp(&self.listen).is_empty() {
            let text = "--send-proxy is for TCP only; without it, UDP needs a proxy of its own";
            return Err(Usage(text.to_owned()));
        }
        Ok(Config {
            listen: self.listen.clone(),
            transparent: self.listen_transparent,
            trust: TrustList::parse(&self.trust).map_err(Usage::from_error)?,
            header: self.header_limits(),
            source_policy: match self.source_policy {
                Policy::Strict => SourcePolicy::Strict,
                Policy::AllowLocal => SourcePolicy::AllowLocal,
            },
            destinations: self.destination.config()?,
            upstream: self.upstream(),
            relay: match self.relay {
                Relay::Auto => Method::Auto,
                Relay::Copy => Method::Copy,
                Relay::Splice => Method::Splice,
            },
            limits: Limits {
                idle: self.idle_timeout,
                half_closed: self.half_closed_timeout,
                ..Limits::default()
            },
            workers: self.workers.map_or_else(cores, usize::from),
            log_tlvs: self.log_tlv.clone(),
        })
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The same for UDP, with at most so many sessions.
    pub(super) fn datagrams(&self, descriptors: usize) -> Datagrams {
        self.udp.config(descriptors)
    }

    fn check_addresses(&self) -> Result<(), Usage> {
        for (option, target) in [("-4", self.target_v4), ("-6", self.target_v6)] {
            if target.port() == 0 || target.ip().is_unspecified() {
                return Err(Usage(format!(
                    "{option} {target}: name the backend's address and port"
                )));
            }
            if self
                .listen
                .iter()
                .any(|&listen| is_reached_at(listen, target))
            {
                return Err(Usage(format!(
                    "{option} {target}: the proxy would connect to itself"
                )));
            }
        }
        let distinct: HashSet<_> = self.listen.iter().collect();
        if distinct.len() < self.listen.len() {
            return Err(Usage("--listen: an address stands there twice".to_owned()));
        }
        Ok(())
    }

    fn header_limits(&self) -> HeaderLimits {
        HeaderLimits {
            timeout: self.header_timeout,
            max_len: self.max_header as usize,
            pending_per_peer: self.max_pending_per_peer as usize,
            pending: self.max_pending as usize,
        }
    }

    fn upstream(&self) -> Upstream {
        Upstream {
            target_v4: Target(self.target_v4),
            target_v6: Target(self.target_v6),
            mark: NonZeroU32::new(self.mark),
            source_port: match self.source_port {
                Port::Keep => SourcePort::Keep,
                Port::Any => SourcePort::Any,
            },
            on_collision: match self.on_port_collision {
                Collision::Ephemeral => OnCollision::Ephemeral,
                Collision::Fail => OnCollision::Fail,
            },
            connect_timeout: self.connect_timeout,
            send_proxy: self.send_proxy.map(SendProxy::from),
        }
    }
}

impl From<Version> for SendProxy {
    fn from(version: Version) -> Self {
        match version {
            Version::V1 => Self::V1,
            Version::V2 => Self::V2,
        }
    }
}

/// Whether a connection to `target` would arrive at `listen`, as far as the addresses tell.
fn is_reached_at(listen: SocketAddr, target: SocketAddr) -> bool {
    // Listening on `::` takes both families, on 0.0.0.0 only one.
    let takes_family = listen.is_ipv6() || target.is_ipv4();
    let wildcard = listen.ip().is_unspecified() && target.ip().is_loopback() && takes_family;
    listen.port() == target.port() && (listen.ip() == target.ip() || wildcard)
}

fn cores() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}
