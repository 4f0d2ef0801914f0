//! One entry of `--allow-destination`, and how it is written.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;

use crate::trust::network;

/// One entry of the list: every address of a network, with every port or with some.
///
/// Written as `10.0.0.0/8`, `10.0.0.5:443`, `10.0.0.0/8:8000-8999`, `[2001:db8::]/32:443` or
/// `[2001:db8::1]:443`; without a port the brackets may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub(super) network: IpNet,
    pub(super) ports: RangeInclusive<u16>,
}

/// Why a text is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnEntry {
    /// It is nothing of the kind.
    #[error(
        "use a network or an address, and ports: 10.0.0.0/8, 10.0.0.5:443, 10.0.0.0/8:8000-8999, \
         [2001:db8::]/32:443"
    )]
    Form,
    /// It is loopback, as a whole.
    #[error("on loopback, name the ports: 127.0.0.1:9000, [::1]:9000-9099")]
    LoopbackWithoutPorts,
}

impl Allowed {
    /// Whether this address with this port is meant.
    pub fn covers(&self, ip: IpAddr, port: u16) -> bool {
        self.network.contains(&ip) && self.ports.contains(&port)
    }

    /// Whether it is for this very address and no other.
    pub fn is_for(&self, ip: IpAddr) -> bool {
        self.network == IpNet::from(ip)
    }

    /// Whether it is within loopback.
    pub fn is_loopback(&self) -> bool {
        let all = [self.network.network(), self.network.broadcast()];
        all.iter().all(IpAddr::is_loopback)
    }
}

impl FromStr for Allowed {
    type Err = NotAnEntry;

    fn from_str(text: &str) -> Result<Self, NotAnEntry> {
        let (network, ports) = split(text).ok_or(NotAnEntry::Form)?;
        let every = FIRST_PORT..=u16::MAX;
        let entry = Self {
            network,
            ports: ports.clone().unwrap_or(every),
        };
        if entry.is_loopback() && ports.is_none() {
            return Err(NotAnEntry::LoopbackWithoutPorts);
        }
        Ok(entry)
    }
}

type Ports = RangeInclusive<u16>;

fn split(text: &str) -> Option<(IpNet, Option<Ports>)> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (inside, behind) = bracketed.split_once(']')?;
        let (length, range) = match behind.split_once(':') {
            Some((length, range)) => (length, Some(ports(range)?)),
            None => (behind, None),
        };
        if !inside.contains(':') || !(length.is_empty() || length.starts_with('/')) {
            return None;
        }
        return Some((network(&format!("{inside}{length}"))?, range));
    }
    if let Some(network) = network(text) {
        return Some((network, None));
    }
    let (before, range) = text.rsplit_once(':')?;
    Some((network(before)?, Some(ports(range)?)))
}

fn ports(text: &str) -> Option<Ports> {
    let number = |text: &str| text.parse().ok().filter(|port| *port >= FIRST_PORT);
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    (first <= last).then_some(first..=last)
}

const FIRST_PORT: u16 = 1;
