//! Notices that the program listens, but on none of the ports of `--ports`: a mistyped port would show the balancer as the client.

use std::env;
use std::time::{Duration, Instant};

use peername_identity::Settings;
use peername_sys::process::stderr::try_write_line;

/// What is known of the ports on which the program listens.
#[derive(Debug)]
pub(super) enum PortWatch {
    /// It has not listened yet.
    Waiting,
    /// It has listened on this port, which expects no headers, and on no other since `begun`.
    Uncovered { port: u16, begun: Instant },
    /// There is nothing to warn of any more.
    Done,
}

impl PortWatch {
    /// Sockets that a service manager has passed listen already, perhaps on one of the ports: nothing is known then.
    pub(super) fn new() -> Self {
        match env::var_os("LISTEN_FDS") {
            Some(_) => Self::Done,
            None => Self::Waiting,
        }
    }

    /// Notes the port of a socket that is about to listen.
    pub(super) fn note(&mut self, port: u16, settings: Settings<'_>) {
        if settings.covers(port) {
            *self = Self::Done;
        } else if matches!(self, Self::Waiting) {
            let begun = Instant::now();
            *self = Self::Uncovered { port, begun };
        }
    }

    /// When [`PortWatch::warn`] must be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Uncovered { begun, .. } => Some(*begun + GRACE_PERIOD),
            Self::Waiting | Self::Done => None,
        }
    }

    /// Warns once, if the deadline has passed.
    pub(super) fn warn(&mut self, settings: Settings<'_>) {
        if let Self::Uncovered { port, begun } = *self
            && begun.elapsed() >= GRACE_PERIOD
        {
            *self = Self::Done;
            let ports = list(|port| settings.covers(port));
            try_write_line(&format!(
                "peername: the program listens on port {port}, and on no port of --ports {ports}: no header is read, and its \
                 clients are those that connect"
            ));
        }
    }
}

/// The ports, as `--ports` takes them.
fn list(is_listed: impl Fn(u16) -> bool) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in (1..=u16::MAX).filter(|port| is_listed(*port)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == port => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let texts: Vec<_> = ranges
        .iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

/// Servers open their ports one after the other, some after they have read their data.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use peername_identity::Table;

    use super::*;

    #[test]
    fn port_that_is_covered_ends_the_watch() {
        let words = Table::size(64) / 8;
        let memory: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let settings = Table::new(&memory).expect("a table").settings();
        settings.ports().insert(443);
        let mut watch = PortWatch::Waiting;
        assert_eq!(watch.next_deadline(), None);
        watch.note(8080, settings);
        let deadline = watch.next_deadline();
        assert!(deadline.is_some());
        watch.note(8081, settings);
        assert_eq!(watch.next_deadline(), deadline);
        watch.note(443, settings);
        watch.note(8080, settings);
        assert_eq!(watch.next_deadline(), None);
    }

    #[test]
    fn ports_are_listed_as_the_option_takes_them() {
        let ports = [80, 443, 444, 445, 65535];
        assert_eq!(list(|port| ports.contains(&port)), "80,443-445,65535");
    }
}
