//! `peername exec --mode netns`: opens the sockets outside, and builds the proxy's command line.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use anyhow::Context;
use peername_daemon::options::Given;
use peername_daemon::usage::Usage;
use peername_exec::netns;
use peername_observe::admin::AdminListener;
use peername_server::listeners::InheritedSockets;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use peername_sys::udp;

use super::options::Args;
use super::rule_args::Header;
use crate::cmd::proxy::header_args::HeaderArgs;

/// Opens the listening sockets and moves this process into its private network.
///
/// # Errors
///
/// [`Usage`], an address that can't be bound, or a network that can't be created.
pub(super) fn start(given: &Given<Args>) -> anyhow::Result<()> {
    let args = &given.options;
    if args.rules.header == Header::Optional {
        let text = "--mode netns goes with --header require only";
        return Err(Usage(text.to_owned()).into());
    }
    if args.dst {
        let text = "--mode netns can't show the header's destination (--dst): the server's own address \
                    there is loopback";
        return Err(Usage(text.to_owned()).into());
    }
    if given.words_of("max_connections").next().is_some() {
        let text = "--max-connections is not for --mode netns: the limit of open files (ulimit -n, LimitNOFILE) bounds its connections";
        return Err(Usage(text.to_owned()).into());
    }
    let addrs = addresses(args)?;
    let mut sockets = Vec::new();
    for &addr in &addrs {
        let context = || format!("can't listen on {addr}");
        if args.protocol.has_tcp() {
            sockets.push(OwnedFd::from(
                listener::listen(addr, V6_ONLY).with_context(context)?,
            ));
        }
        if args.protocol.has_udp() {
            let socket = udp::listen(addr, V6_ONLY).with_context(context)?;
            udp::start_receiving(&socket).with_context(context)?;
            sockets.push(OwnedFd::from(socket));
        }
    }
    sockets.extend(admin_sockets(args)?);
    netns::start(sockets, proxy_argv(given, &addrs))?;
    Ok(())
}

/// The TCP sockets of `--admin`. A Unix socket is reachable from every network by its path, so the proxy opens it; here it is
/// only tried, so that an error is known before the program starts.
fn admin_sockets(args: &Args) -> anyhow::Result<impl Iterator<Item = OwnedFd>> {
    let listeners = args.admin.open(&mut InheritedSockets::default(), None)?;
    let tcp = |listener| match listener {
        AdminListener::Tcp(socket) => Some(OwnedFd::from(socket)),
        AdminListener::Unix(_) => None,
    };
    Ok(listeners.into_iter().filter_map(tcp))
}

fn addresses(args: &Args) -> Result<Vec<SocketAddr>, Usage> {
    if !args.listen.is_empty() {
        if let Some(port) = port_in_one_list_only(&args.listen, &args.rules.ports) {
            return Err(Usage(format!(
                "--ports and --listen name different ports ({port} is in one of them only): with --mode \
                 netns give --listen alone, or the same ports in both"
            )));
        }
        return Ok(args.listen.clone());
    }
    let everywhere = |port: u16| {
        [
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        ]
    };
    // Ranges may overlap.
    let ports: BTreeSet<u16> = args.rules.ports.iter().cloned().flatten().collect();
    let addrs: Vec<_> = ports.into_iter().flat_map(everywhere).collect();
    if addrs.is_empty() {
        let text = "--mode netns opens the ports itself: set --ports (such as 443) or --listen";
        return Err(Usage(text.to_owned()));
    }
    Ok(addrs)
}

/// A port that only one of `--listen` and `--ports` names. No `--ports` at all agrees with every `--listen`.
fn port_in_one_list_only(listen: &[SocketAddr], ports: &[RangeInclusive<u16>]) -> Option<u16> {
    if ports.is_empty() {
        return None;
    }
    let named: BTreeSet<u16> = ports.iter().cloned().flatten().collect();
    let opened: BTreeSet<u16> = listen.iter().map(SocketAddr::port).collect();
    named.symmetric_difference(&opened).next().copied()
}

/// The arguments of the proxy in the inner network.
fn proxy_argv(given: &Given<Args>, addrs: &[SocketAddr]) -> Vec<OsString> {
    let args = &given.options;
    let mut words = vec![
        "proxy".to_owned(),
        "--sockets-from-outside".to_owned(),
        "--target=127.0.0.1:same".to_owned(),
        "--target=[::1]:same".to_owned(),
    ];
    words.extend(addrs.iter().map(|addr| format!("--listen={addr}")));
    words.extend(args.rules.headers_with_absolute_paths().network_words());
    let mut words: Vec<_> = words.into_iter().map(OsString::from).collect();
    words.extend(
        HeaderArgs::OTHER_IDS
            .iter()
            .chain(&AS_GIVEN)
            .flat_map(|option| given.words_of(option).cloned()),
    );
    words
}

/// Further options that the proxy gets as they were given, by their ids.
const AS_GIVEN: [&str; 5] = [
    "protocol",
    "source_policy",
    "admin",
    "admin_host",
    "verbose",
];
/// `[::]` takes IPv6 only, so that `0.0.0.0` can be bound beside it.
const V6_ONLY: BindOptions = BindOptions {
    reuse_port: false,
    v6_only: true,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_listen_must_name_the_same_ports() {
        let table = [
            (vec!["0.0.0.0:443"], vec![], None),
            (vec!["0.0.0.0:443"], vec!["443"], None),
            (vec!["0.0.0.0:80", "[::]:81"], vec!["80-81"], None),
            (vec!["0.0.0.0:443"], vec!["444"], Some(443)),
            (vec!["0.0.0.0:443"], vec!["443", "8443"], Some(8443)),
            (vec!["0.0.0.0:80", "0.0.0.0:443"], vec!["443"], Some(80)),
        ];
        for (listen, ports, expected) in table {
            let addrs: Vec<SocketAddr> = listen.iter().map(|text| text.parse().unwrap()).collect();
            let ranges: Vec<_> = ports
                .iter()
                .map(|text| peername_daemon::value::ports(text).unwrap())
                .collect();
            assert_eq!(
                port_in_one_list_only(&addrs, &ranges),
                expected,
                "{listen:?} {ports:?}"
            );
        }
    }
}
