//! Joins several values to one line, for a log field, the status of the service manager, or a report.

use std::fmt::Display;
use std::net::SocketAddr;

/// Joins values by spaces.
pub fn join(values: impl IntoIterator<Item = impl Display>) -> String {
    let texts: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    texts.join(" ")
}

/// Joins addresses by spaces; consecutive ports of one host become a range.
pub fn ranges(addrs: impl IntoIterator<Item = SocketAddr>) -> String {
    let mut runs: Vec<(SocketAddr, u16)> = Vec::new();
    for addr in addrs {
        match runs.last_mut() {
            Some((first, last))
                if first.ip() == addr.ip() && last.checked_add(1) == Some(addr.port()) =>
            {
                *last = addr.port();
            }
            _ => runs.push((addr, addr.port())),
        }
    }
    join(runs.iter().map(|(first, last)| match last - first.port() {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    }))
}
