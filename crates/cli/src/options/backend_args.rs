//! The options that name backends and their protocol: of `routes add` and `doctor`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_daemon::usage::UsageError;
use peername_proxy::config::TargetRule;
use peername_proxy::routes::Backend;

use super::protocol::Protocol;
use super::target_args;

/// The options that name backends, as `peername proxy` has them, and their protocol.
#[derive(Debug, Clone, clap::Args)]
#[command(
    // The text of `proxy` is about the clients that it connects.
    mut_arg("target", |arg| arg.help(
        "A backend: 127.0.0.1:8080, [::1]:8080 or host:8080, with port \"same\" for the port of its listener; may be repeated, once \
         for each address family"
    ))
)]
#[group(skip)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    targets: target_args::Args,
    /// The protocol of the backends
    #[arg(short, long, default_value = "tcp")]
    pub(crate) protocol: Protocol,
}

impl BackendArgs {
    /// The backends that are named, IPv4 first, with each protocol. Port 0 stands for all ports.
    pub(crate) fn backends(&self) -> Result<Vec<Backend>, UsageError> {
        let targets = self.targets.targets()?;
        let addresses: Result<Vec<_>, _> = targets.iter().map(rule_address).collect();
        Ok(self.protocol.backends(&addresses?))
    }

    /// As [`BackendArgs::backends`], for a proxy with these listeners: a backend with port `same` has each of their ports, or
    /// port 0 without listeners.
    pub(crate) fn backends_for_listeners(
        &self,
        listen: &[SocketAddr],
    ) -> Result<Vec<Backend>, UsageError> {
        let ports: BTreeSet<u16> = match listen {
            [] => BTreeSet::from([0]),
            listen => listen.iter().map(SocketAddr::port).collect(),
        };
        let targets = self.targets.targets()?;
        let mut addresses = Vec::new();
        for target in targets.iter() {
            match target {
                TargetRule::Fixed(target) => addresses.push(target.0),
                TargetRule::SamePort(ip) => {
                    addresses.extend(ports.iter().map(|&port| SocketAddr::new(ip, port)));
                }
            }
        }
        Ok(self.protocol.backends(&addresses))
    }

    /// As [`BackendArgs::backends`]; if no backend is named, all ports of loopback in both families.
    pub(crate) fn backends_or_loopback(&self) -> Result<Vec<Backend>, UsageError> {
        let named = self.backends()?;
        if !named.is_empty() {
            return Ok(named);
        }
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        Ok(self
            .protocol
            .backends(&loopback.map(|ip| SocketAddr::new(ip, 0))))
    }
}

/// The address that the rules of a target are for.
fn rule_address(target: TargetRule) -> Result<SocketAddr, UsageError> {
    match target {
        TargetRule::Fixed(target) => Ok(target.0),
        TargetRule::SamePort(ip) if ip.is_loopback() => Ok(SocketAddr::new(ip, 0)),
        TargetRule::SamePort(_) => Err(UsageError(format!(
            "--target {target}: rules for a backend that is not on loopback are for one port each; name it"
        ))),
    }
}
