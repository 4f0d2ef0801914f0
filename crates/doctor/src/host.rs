//! Checks of this host: capabilities, kernel, settings, limits.

pub mod firewall_marks;

use std::fs;

use peername_server::capabilities::Advice;
use peername_sys::process::caps::{self, CapabilitySet};
use peername_sys::process::limits;

use self::Command::{Intercept, Proxy};
use crate::finding::Finding;
use crate::version::parse_version;

/// A command whose needs are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `peername proxy`.
    Proxy,
    /// `peername intercept`, which neither spoofs a client's address nor needs rules.
    Intercept,
}

/// Runs the checks that are for a command.
pub fn findings(command: Command) -> impl Iterator<Item = Finding> {
    CHECKS
        .into_iter()
        .filter(move |(_, commands)| commands.contains(&command))
        .map(|(check, _)| check())
}

/// A check, and the commands that it is for.
type Check = (fn() -> Finding, &'static [Command]);

/// All checks, in the order in which they are reported.
const CHECKS: [Check; 12] = [
    (net_raw, &[Proxy]),
    (net_bind_service, &[Proxy]),
    (kernel, &[Proxy]),
    (ipv6, &[Proxy]),
    (somaxconn, &[Proxy, Intercept]),
    (rp_filter, &[Proxy]),
    (src_valid_mark, &[Proxy]),
    (route_localnet, &[Proxy]),
    (ip_forward, &[Proxy]),
    (ephemeral_ports, &[Proxy]),
    (tcp_timestamps, &[Proxy]),
    (open_files, &[Proxy, Intercept]),
];

fn net_raw() -> Finding {
    if caps::is_effective(CapabilitySet::NET_RAW) {
        return Finding::ok("CAP_NET_RAW", "held");
    }
    Finding::fail(
        "CAP_NET_RAW",
        "missing, so the proxy can't connect from clients' addresses",
        Advice::for_this_process().to_string(),
    )
}

fn net_bind_service() -> Finding {
    if caps::is_effective(CapabilitySet::NET_BIND_SERVICE) {
        return Finding::ok("CAP_NET_BIND_SERVICE", "held");
    }
    let first = read_number("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or(1024);
    if first == 0 {
        return Finding::ok(
            "CAP_NET_BIND_SERVICE",
            "not needed: no port is privileged here",
        );
    }
    Finding::warn(
        "CAP_NET_BIND_SERVICE",
        format!("missing, so a client's port below {first} can't be used"),
        "grant it beside CAP_NET_RAW",
    )
}

fn kernel() -> Finding {
    check_kernel(OLDEST_KERNEL, |release| {
        Finding::warn(
            KERNEL,
            format!(
                "Linux {release}: rules have no protocol field, so `routes` can't identify peername's"
            ),
            "4.17 or later, or set up rules and routes by hand (docs/routes.md)",
        )
    })
}

/// Checks the kernel's version; `too_old` makes the finding about a release before `oldest`.
pub(crate) fn check_kernel(oldest: (u32, u32), too_old: impl FnOnce(&str) -> Finding) -> Finding {
    let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
    match parse_version(&release) {
        Some(version) if version >= oldest => Finding::ok(KERNEL, format!("Linux {release}")),
        Some(_) => too_old(&release),
        None => Finding::warn(
            KERNEL,
            "/proc/sys/kernel/osrelease can't be read",
            "mount /proc",
        ),
    }
}

fn ipv6() -> Finding {
    match read_number("/proc/sys/net/ipv6/conf/all/disable_ipv6") {
        Some(0) => Finding::ok("IPv6", "on"),
        found => Finding::warn(
            "IPv6",
            match found {
                Some(_) => "net.ipv6.conf.all.disable_ipv6 = 1: IPv6 clients will be refused",
                None => "the kernel has none: IPv6 clients will be refused",
            },
            "`sysctl -w net.ipv6.conf.all.disable_ipv6=0`, or boot without `ipv6.disable=1`",
        ),
    }
}

/// Raises the limit of descriptors as the commands do, and checks it.
fn open_files() -> Finding {
    match limits::raise_open_files() {
        Ok(limit) if limit >= MIN_OPEN_FILES => Finding::ok("open files", format!("up to {limit}")),
        Ok(limit) => Finding::warn(
            "open files",
            format!("up to {limit}"),
            "`LimitNOFILE=262144` in the unit, or `ulimit -Hn 262144` as root",
        ),
        Err(error) => Finding::warn("open files", error.to_string(), "see `ulimit -Hn`"),
    }
}

/// Checks the limit of accept backlogs.
fn somaxconn() -> Finding {
    match read_number("/proc/sys/net/core/somaxconn") {
        Some(depth) if depth < MIN_BACKLOG => Finding::warn(
            "net.core.somaxconn",
            format!("{depth}: a burst of connections waits a second for its next SYN"),
            "`sysctl -w net.core.somaxconn=4096`",
        ),
        found => Finding::ok("net.core.somaxconn", or_unset(found)),
    }
}

/// Checks reverse path filtering. Packets that stay on loopback are not filtered (their route is known from sending), so this
/// matters only for a backend behind another interface.
fn rp_filter() -> Finding {
    let values = ["all", "default", "lo"].map(|name| {
        (
            name,
            read_number(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")),
        )
    });
    let seen = values
        .map(|(name, value)| format!("{name} {}", or_unset(value)))
        .join(", ");
    if values.iter().any(|(_, value)| *value == Some(1)) {
        return Finding::warn(
            "net.ipv4.conf.*.rp_filter",
            format!(
                "{seen}: strict, drops replies that arrive on another interface than they \
                     would leave by; irrelevant for a backend on loopback"
            ),
            "`sysctl -w net.ipv4.conf.all.rp_filter=2` if the backend is behind an interface",
        );
    }
    Finding::ok("net.ipv4.conf.*.rp_filter", seen)
}

fn src_valid_mark() -> Finding {
    match read_number("/proc/sys/net/ipv4/conf/all/src_valid_mark") {
        Some(1) => Finding::warn(
            "net.ipv4.conf.all.src_valid_mark",
            "1, as Tailscale and wg-quick set it: rp_filter uses firewall marks too",
            "choose another `--mark` than theirs (Tailscale's are within 0xff0000)",
        ),
        found => Finding::ok("net.ipv4.conf.all.src_valid_mark", or_unset(found)),
    }
}

fn route_localnet() -> Finding {
    let interfaces: Vec<_> = interfaces_with("route_localnet").collect();
    if interfaces.is_empty() {
        return Finding::ok("net.ipv4.conf.*.route_localnet", "0");
    }
    // An interface has the setting if either its own value or that of `all` is 1. In a key, sysctl(8) reads a slash as the dot
    // of a name such as eth0.7.
    let unset: String = interfaces
        .iter()
        .map(|name| {
            let name = name.replace('.', "/");
            format!(" net.ipv4.conf.{name}.route_localnet=0")
        })
        .collect();
    Finding::warn(
        "net.ipv4.conf.*.route_localnet",
        format!(
            "1 for {}: 127.0.0.0/8 can be reached from the network",
            interfaces.join(", ")
        ),
        format!(
            "peername needs it on lo only, for `--data-path kernel`; if nothing else needs it: `sysctl -w{unset}`"
        ),
    )
}

fn ip_forward() -> Finding {
    match read_number("/proc/sys/net/ipv4/ip_forward") {
        Some(0) => Finding::ok(
            "net.ipv4.ip_forward",
            "0: enough for a backend on this host, not for one in a container's network",
        ),
        found => Finding::ok("net.ipv4.ip_forward", or_unset(found)),
    }
}

/// Checks the range of ephemeral ports: a connection gets one of them if the client's own port is in use.
fn ephemeral_ports() -> Finding {
    let range = read_text("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range
        .split_whitespace()
        .filter_map(|end| end.parse::<u32>().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) if last.saturating_sub(first) < MIN_EPHEMERAL_PORTS => {
            Finding::warn(
                "net.ipv4.ip_local_port_range",
                format!("{first} to {last}: few ports for clients if their own is in use"),
                "`sysctl -w net.ipv4.ip_local_port_range='32768 60999'`",
            )
        }
        (Some(first), Some(last)) => {
            Finding::ok("net.ipv4.ip_local_port_range", format!("{first} to {last}"))
        }
        _ => Finding::ok("net.ipv4.ip_local_port_range", "not set"),
    }
}

/// Checks timestamps, without which no connection can take a port that is in TIME_WAIT (tcp_tw_reuse).
fn tcp_timestamps() -> Finding {
    match read_number("/proc/sys/net/ipv4/tcp_timestamps") {
        Some(0) => Finding::warn(
            "net.ipv4.tcp_timestamps",
            "0: a client that uses its port again within 60 s waits for 1 s, and then gets another port",
            "`sysctl -w net.ipv4.tcp_timestamps=1`",
        ),
        found => Finding::ok("net.ipv4.tcp_timestamps", or_unset(found)),
    }
}

/// The interfaces for which a setting of net.ipv4.conf is 1, `all` and `default` among them.
fn interfaces_with(setting: &str) -> impl Iterator<Item = String> {
    fs::read_dir("/proc/sys/net/ipv4/conf")
        .into_iter()
        .flatten()
        .flatten()
        .filter(move |interface| {
            read_number(&format!("{}/{setting}", interface.path().display())) == Some(1)
        })
        .map(|interface| interface.file_name().to_string_lossy().into_owned())
}

pub(crate) fn read_text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

pub(crate) fn read_number(path: &str) -> Option<u64> {
    read_text(path)?.parse().ok()
}

fn or_unset(value: Option<u64>) -> String {
    value.map_or_else(|| "not set".to_owned(), |value| value.to_string())
}

const KERNEL: &str = "kernel";
/// The oldest kernel that has FRA_PROTOCOL, which identifies peername's rules, and FRA_IP_PROTO and FRA_SPORT_RANGE,
/// which restrict them.
const OLDEST_KERNEL: (u32, u32) = (4, 17);
/// A limit of descriptors that is enough for about 8000 connections.
const MIN_OPEN_FILES: u64 = 16384;
/// An accept backlog that takes a burst. The default was 128 before Linux 5.4, and has been 4096 since.
const MIN_BACKLOG: u64 = 1024;
const MIN_EPHEMERAL_PORTS: u32 = 1000;
