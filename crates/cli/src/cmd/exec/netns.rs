//! `peername exec --mode netns`: opens the sockets outside, and builds the proxy's command line.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use anyhow::anyhow;
use peername_daemon::options::Given;
use peername_daemon::usage::UsageError;
use peername_exec::netns;
use peername_observe::admin::AdminListener;
use peername_server::listeners::{BindError, InheritedSockets};
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use peername_sys::udp;

use super::inherited;
use super::listener_policy_args::{HeaderRequirement, words_with_absolute_paths};
use super::options::Args;

/// Opens the listening sockets and moves this process into its private network.
pub(super) fn start(given: &Given<Args>) -> anyhow::Result<()> {
    refuse_unsupported_options(given)?;
    refuse_inherited_listener()?;
    let addrs = addresses(&given.options)?;
    let mut sockets = listening_sockets(&given.options, &addrs)?;
    sockets.extend(admin_sockets(&given.options)?);
    netns::start(sockets, proxy_argv(given, &addrs))?;
    Ok(())
}

fn refuse_unsupported_options(given: &Given<Args>) -> Result<(), UsageError> {
    let args = &given.options;
    let text = if args.listener_policy.header == HeaderRequirement::Optional {
        "--mode netns goes with --header require only"
    } else if args.dst {
        "--mode netns can't show the header's destination (--dst): the server's own address \
         there is loopback"
    } else if given.words_of("max_connections").next().is_some() {
        "--max-connections is not for --mode netns: the limit of open files (ulimit -n, LimitNOFILE) bounds its connections"
    } else {
        return Ok(());
    };
    Err(UsageError(text.to_owned()))
}

/// Refuses a socket that the program would inherit: it belongs to the network outside, so its clients bypass the proxy.
fn refuse_inherited_listener() -> anyhow::Result<()> {
    match inherited::find_listener()? {
        Some(fd) => Err(anyhow!(
            "descriptor {fd} is a TCP socket without a peer or a UDP socket, as a systemd socket passes it: with --mode netns nothing \
             would read the headers of its clients. Let the server open its sockets itself, or for TCP use --mode preload or notify"
        )),
        None => Ok(()),
    }
}

fn listening_sockets(args: &Args, addrs: &[SocketAddr]) -> anyhow::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    for &addr in addrs {
        let failed = |failed| BindError::new(addr, failed);
        if args.protocol.has_tcp() {
            let socket = listener::listen(addr, BindOptions::ALONE).map_err(failed)?;
            sockets.push(OwnedFd::from(socket));
        }
        if args.protocol.has_udp() {
            let socket = udp::listen(addr, BindOptions::ALONE).map_err(failed)?;
            udp::start_receiving(&socket).map_err(failed)?;
            sockets.push(OwnedFd::from(socket));
        }
    }
    Ok(sockets)
}

/// The TCP sockets of `--admin`. A Unix socket is reachable from every network by its path, so the proxy opens it. This process
/// only tries to, so that an error is known before the program starts.
fn admin_sockets(args: &Args) -> anyhow::Result<impl Iterator<Item = OwnedFd>> {
    let listeners = args.admin.open(&mut InheritedSockets::default(), None)?;
    Ok(listeners
        .into_iter()
        .filter_map(|opened| match opened.listener {
            AdminListener::Tcp(socket) => Some(OwnedFd::from(socket)),
            AdminListener::Unix(_) => None,
        }))
}

/// The addresses to listen on: those of `--listen`, or every address on each of `--ports`.
fn addresses(args: &Args) -> Result<Vec<SocketAddr>, UsageError> {
    if !args.listen.is_empty() {
        if let Some(port) = port_in_one_list_only(&args.listen, &args.listener_policy.ports) {
            return Err(UsageError(format!(
                "--ports and --listen name different ports (only one of them has {port}): with --mode \
                 netns give --listen alone, or the same ports in both"
            )));
        }
        return Ok(args.listen.clone());
    }
    // Ranges may overlap.
    let ports: BTreeSet<u16> = args
        .listener_policy
        .ports
        .iter()
        .cloned()
        .flatten()
        .collect();
    if ports.is_empty() {
        let text = "--mode netns opens the ports itself: set --ports (such as 443) or --listen";
        return Err(UsageError(text.to_owned()));
    }
    let wildcards = |port: u16| {
        [
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        ]
    };
    Ok(ports.into_iter().flat_map(wildcards).collect())
}

/// A port that only one of `--listen` and `--ports` names; `None` without `--ports`.
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
    let mut argv: Vec<OsString> = vec![
        "proxy".into(),
        "--sockets-from-outside".into(),
        "--target=127.0.0.1:same".into(),
        "--target=[::1]:same".into(),
    ];
    argv.extend(
        addrs
            .iter()
            .map(|addr| OsString::from(format!("--listen={addr}"))),
    );
    // All others: the proxy refuses one that it does not have.
    argv.extend(words_with_absolute_paths(given, &APPLIED_HERE));
    argv
}

/// The ids of the options that take effect in this process.
const APPLIED_HERE: [&str; 4] = ["mode", "listen", "ports", "header"];

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::*;
    use crate::cmd::proxy;

    #[test]
    fn each_option_takes_effect_here_or_in_the_proxy_or_is_refused() {
        let refused = [
            "max_connections",
            "dst",
            "connect",
            "source",
            "proxy_version",
            "unit",
            "print",
            "check",
            "remove",
        ];
        let proxy = proxy::Args::augment_args(Command::new("proxy"));
        for arg in Args::augment_args(Command::new("exec")).get_arguments() {
            let (id, Some(long)) = (arg.get_id().as_str(), arg.get_long()) else {
                continue;
            };
            let is_passed_on = proxy
                .get_arguments()
                .any(|other| other.get_long() == Some(long));
            assert!(
                is_passed_on || APPLIED_HERE.contains(&id) || refused.contains(&id),
                "--{long}"
            );
        }
    }

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
