//! The options of `peername routes add` for the packet filter (nftables).

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use peername_daemon::value;
use peername_proxy::routes::{FilterRules, LOCAL_FWMARK};
use peername_sys::Transport;

/// The traffic to redirect to the proxy, beside the replies of backends on this host.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Redirect what other hosts send to these ports to one listener (TPROXY): PORT or PORT-PORT; may be repeated
    #[arg(long, value_name = "PORTS", value_parser = value::ports)]
    tproxy_ports: Vec<RangeInclusive<u16>>,
    /// The port that the proxy listens on, with --listen-transparent
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 8443,
        value_parser = clap::value_parser!(u16).range(1..),
        requires = "tproxy_ports"
    )]
    tproxy_to: u16,
    /// Redirect these ports also for a network that is routed to this host, CIDR; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = peername_proto::parse_network, requires = "tproxy_ports")]
    tproxy_destination: Vec<IpNet>,
    /// Deliver to this host what is sent to clients on connections with the proxy's --mark N (backends on other hosts)
    #[arg(short, long, value_name = "N", value_parser = mark)]
    mark: Option<NonZeroU32>,
}

impl Args {
    /// Whether backends may be on other hosts, whose replies come by the mark and not by routing rules of this host.
    pub(super) fn is_for_other_hosts(&self) -> bool {
        self.mark.is_some()
    }

    /// The tables to add: one for the ports, one for the mark.
    pub(super) fn filter_rules(&self, transports: &[Transport]) -> Vec<FilterRules> {
        let ports = (!self.tproxy_ports.is_empty()).then(|| FilterRules::Ports {
            ports: self.tproxy_ports.clone(),
            to: self.tproxy_to,
            transports: transports.to_vec(),
            networks: self.tproxy_destination.clone(),
        });
        let replies = self
            .mark
            .map(|mark| FilterRules::Replies { mark, owner: None });
        ports.into_iter().chain(replies).collect()
    }
}

/// Parses the firewall mark of the proxy's connections. With [`LOCAL_FWMARK`], packets would not leave this host.
fn mark(text: &str) -> Result<NonZeroU32, String> {
    match NonZeroU32::new(value::mark(text)?) {
        None => Err("use a number other than 0, the one of `peername proxy --mark`".to_owned()),
        Some(mark) if mark.get() == LOCAL_FWMARK => {
            Err("peername uses this mark for its own rules; choose another one".to_owned())
        }
        Some(mark) => Ok(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_the_local_mark_are_refused() {
        assert_eq!(mark("0x7b").map(NonZeroU32::get), Ok(123));
        assert!(mark("0").is_err() && mark("0x2110").is_err());
    }
}
