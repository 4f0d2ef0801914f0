//! Everything that one run is to do, checked as a whole before anything is opened.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use peername_proxy::addr::LocalAddr;
use peername_proxy::config::{Config, Datagrams, TargetRule};
use peername_proxy::routes::Backend;
use peername_proxy::watchdog::Probe;
use peername_sys::netlink::Transport;

use super::options::{Args, Listener, Process};
use crate::usage::Usage;

/// What is to be done.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) process: Process,
    pub(super) services: Vec<Planned>,
}

/// Some listeners and what they serve by.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) tcp: Vec<SocketAddr>,
    pub(super) udp: Vec<SocketAddr>,
    pub(super) config: Arc<Config>,
    pub(super) datagrams: Datagrams,
}

impl Setup {
    /// Reads what the command line says, and whatever it names.
    pub(super) fn read(args: &Args) -> Result<Self, Usage> {
        let setup = Self {
            process: args.process.clone(),
            services: vec![Planned::new(&args.listener)?],
        };
        setup.check()?;
        Ok(setup)
    }

    /// The addresses that are listened on.
    pub(super) fn listen(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> + '_ {
        self.services
            .iter()
            .flat_map(move |planned| planned.listen(transport))
            .copied()
    }

    /// Every backend once: those that rules have to be made for.
    pub(super) fn backends(&self) -> Vec<Backend> {
        let mut known = HashSet::new();
        let all = self.services.iter().flat_map(Planned::backends);
        all.map(|(backend, _)| backend)
            .filter(|&backend| known.insert(backend))
            .collect()
    }

    /// Every backend, and whether one port of it stands for all.
    pub(super) fn probes(&self) -> impl Iterator<Item = Probe> + '_ {
        self.services
            .iter()
            .flat_map(Planned::backends)
            .map(|(backend, any_port)| Probe { backend, any_port })
    }

    /// A mark, if any service has one.
    pub(super) fn mark(&self) -> Option<NonZeroU32> {
        self.services
            .iter()
            .find_map(|planned| planned.config.upstream.mark)
    }

    /// What none of its parts can know alone.
    fn check(&self) -> Result<(), Usage> {
        TRANSPORTS
            .into_iter()
            .try_for_each(|transport| self.check_addresses(transport))
    }

    fn check_addresses(&self, transport: Transport) -> Result<(), Usage> {
        let mut taken = HashSet::new();
        for addr in self.listen(transport) {
            if !taken.insert(addr) {
                return Err(Usage(format!("--listen: {addr} stands there twice")));
            }
        }
        for (backend, _) in self.services.iter().flat_map(Planned::backends) {
            let target = backend.address;
            if backend.transport == transport && is_reached_at(&taken, target) {
                let option = if target.is_ipv4() { "-4" } else { "-6" };
                return Err(Usage(format!(
                    "{option} {target}: the proxy would connect to itself"
                )));
            }
        }
        Ok(())
    }
}

impl Planned {
    pub(super) fn new(listener: &Listener) -> Result<Self, Usage> {
        let mut listen = Vec::new();
        for written in &listener.listen {
            let addresses = written.addresses();
            listen.extend(addresses.map_err(|why| Usage(format!("--listen {written}: {why}")))?);
        }
        Ok(Self {
            tcp: listener.protocol.tcp(&listen).to_vec(),
            udp: listener.protocol.udp(&listen).to_vec(),
            config: Arc::new(listener.config()?),
            datagrams: listener.datagrams(),
        })
    }

    /// What is listened on.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (Transport, SocketAddr)> + '_ {
        TRANSPORTS.into_iter().flat_map(|transport| {
            let addrs = self.listen(transport).iter();
            addrs.map(move |&addr| (transport, addr))
        })
    }

    pub(super) fn listen(&self, transport: Transport) -> &[SocketAddr] {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        }
    }

    /// Where its clients may go, and whether that is one port of many.
    fn backends(&self) -> impl Iterator<Item = (Backend, bool)> + '_ {
        let upstream = &self.config.upstream;
        let of = move |transport, rule: TargetRule| {
            let any_port = matches!(rule, TargetRule::SamePort(_));
            let all = self.listen(transport);
            let different = if any_port {
                all
            } else {
                all.get(..1).unwrap_or(all)
            };
            different.iter().map(move |&addr| {
                let address = rule.of(LocalAddr(addr)).0;
                (Backend { address, transport }, any_port)
            })
        };
        TRANSPORTS.into_iter().flat_map(move |transport| {
            of(transport, upstream.target_v4).chain(of(transport, upstream.target_v6))
        })
    }
}

/// Whether a connection to `target` would arrive at one of these, as far as the addresses tell.
fn is_reached_at(listen: &HashSet<SocketAddr>, target: SocketAddr) -> bool {
    let wildcards: &[SocketAddr] = match target.ip() {
        ip if !ip.is_loopback() => &[],
        ip if ip.is_ipv4() => &WILDCARDS,
        _ => &WILDCARDS[1..],
    };
    listen.contains(&target)
        || wildcards.iter().any(|&(mut wildcard)| {
            wildcard.set_port(target.port());
            listen.contains(&wildcard)
        })
}

pub(super) const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
/// `[::]` takes IPv4 too.
const WILDCARDS: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
];
