//! Warns if the program listens on none of the ports of `--ports`: after a typing error the program would take the balancer for
//! its client.

use std::time::{Duration, Instant};

use peername_identity::Settings;

use crate::stderr_line::try_write_line;

/// The state of the warning.
#[derive(Debug)]
pub(super) enum PortWatch {
    /// The program has not listened yet.
    Waiting,
    /// The program listens on this port since that time, and on no port that expects headers.
    Uncovered { port: u16, since: Instant },
    /// There is nothing to warn of any more.
    Done,
}

impl PortWatch {
    /// Notes the port of a socket that is about to listen.
    pub(super) fn note(&mut self, port: u16, settings: Settings<'_>) {
        if settings.covers(port) {
            *self = Self::Done;
        } else if matches!(self, Self::Waiting) {
            let since = Instant::now();
            *self = Self::Uncovered { port, since };
        }
    }

    /// When [`PortWatch::warn`] must be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Uncovered { since, .. } => Some(*since + GRACE_PERIOD),
            Self::Waiting | Self::Done => None,
        }
    }

    /// Warns once, if the deadline has passed.
    pub(super) fn warn(&mut self, settings: Settings<'_>) {
        if let Self::Uncovered { port, since } = *self
            && since.elapsed() >= GRACE_PERIOD
        {
            *self = Self::Done;
            let ports = format_ports(|port| settings.covers(port));
            try_write_line(&format!(
                "peername: the program listens on port {port}, and on no port of --ports {ports}: no header is read, and its \
                 clients are those that connect"
            ));
        }
    }
}

/// Formats a set of ports as `--ports` takes it.
fn format_ports(is_listed: impl Fn(u16) -> bool) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in (1..=u16::MAX).filter(|port| is_listed(*port)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == port => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let texts: Vec<_> = ranges
        .into_iter()
        .map(|range| match range {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
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
    fn covered_port_ends_the_watch() {
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
        assert_eq!(
            format_ports(|port| ports.contains(&port)),
            "80,443-445,65535"
        );
    }
}
