//! The options of `peername routes add` that are about the packet filter.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use peername_proxy::routes::{FilterRules, LOCAL_FWMARK};
use peername_sys::netlink::Transport;

use crate::value;

/// What is to be brought to the proxy beside the replies of backends on this host.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Bring what other hosts send to these ports to one listener (TPROXY): PORT or PORT-PORT; may be repeated
    #[arg(long, value_name = "PORTS", value_parser = value::ports)]
    tproxy_ports: Vec<RangeInclusive<u16>>,
    /// The port where the proxy listens, with --listen-transparent
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 8443,
        value_parser = clap::value_parser!(u16).range(1..),
        requires = "tproxy_ports"
    )]
    tproxy_to: u16,
    /// The same ports of a network that is routed to this host, CIDR; may be repeated
    #[arg(long, value_name = "CIDR", requires = "tproxy_ports")]
    tproxy_destination: Vec<IpNet>,
    /// Bring back what is sent to clients on connections with the proxy's --mark N (backends on other hosts)
    #[arg(short, long, value_name = "N", value_parser = mark)]
    mark: Option<NonZeroU32>,
}

impl Args {
    /// Whether backends may be where no rule of this host's helps.
    pub(super) fn is_for_other_hosts(&self) -> bool {
        self.mark.is_some()
    }

    /// A table for each.
    pub(super) fn wanted(&self, transports: &[Transport]) -> Vec<FilterRules> {
        let ports = (!self.tproxy_ports.is_empty()).then(|| FilterRules::Ports {
            ports: self.tproxy_ports.clone(),
            to: self.tproxy_to,
            transports: transports.to_vec(),
            networks: self.tproxy_destination.clone(),
        });
        let replies = self.mark.map(|mark| FilterRules::Replies { mark });
        ports.into_iter().chain(replies).collect()
    }
}

/// A mark by which connections are known. With peername's own, what is sent would not leave this host.
fn mark(text: &str) -> Result<NonZeroU32, String> {
    match NonZeroU32::new(value::mark(text)?) {
        None => Err("use a number other than 0, the one of `peername proxy --mark`".to_owned()),
        Some(mark) if mark.get() == LOCAL_FWMARK => {
            Err("peername itself means something else by this one; take another".to_owned())
        }
        Some(mark) => Ok(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_every_mark_will_do() {
        assert_eq!(mark("0x7b").map(NonZeroU32::get), Ok(123));
        assert!(mark("0").is_err() && mark("0x2110").is_err());
    }
}
