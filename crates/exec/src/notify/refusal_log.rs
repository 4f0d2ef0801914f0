//! The throttled log of refused connections, with the reason and the remedy.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use peername_identity::{
    Counter, Refusal, RefusalReader, RefusalVerbosity, Settings, as_socket_family,
};
use peername_sys::throttle::LOG_INTERVAL;

use crate::stderr_line::try_write_line;

/// Reads the refusals that the program's processes and the supervisor record in the table, and logs them as the table's
/// [`RefusalVerbosity`] says: one line each, or one line for each reason in [`LOG_INTERVAL`].
#[derive(Debug)]
pub(super) struct RefusalLog {
    reader: RefusalReader,
    /// The earliest time of the next read, so that a flood does not keep the supervisor busy.
    next_read: Instant,
    reasons: [ReasonState; Counter::ALL.len()],
}

/// The log's state for one reason.
#[derive(Clone, Copy, Debug, Default)]
struct ReasonState {
    logged_at: Option<Instant>,
    /// The value of the reason's counter at that time.
    counted: u64,
}

impl RefusalLog {
    pub(super) fn new() -> Self {
        Self {
            reader: RefusalReader::default(),
            next_read: Instant::now(),
            reasons: Default::default(),
        }
    }

    /// When [`RefusalLog::write`] must be called; `None` if there are no new refusals.
    pub(super) fn next_deadline(&self, settings: Settings<'_>) -> Option<Instant> {
        settings.has_unread_refusals().then_some(self.next_read)
    }

    /// Logs the recorded refusals, if the deadline has passed.
    pub(super) fn write(&mut self, settings: Settings<'_>) {
        let now = Instant::now();
        if self.next_deadline(settings).is_some_and(|at| at <= now) {
            self.next_read = now + READ_INTERVAL;
            for line in self.lines(settings, now) {
                try_write_line(&line);
            }
        }
    }

    fn lines(&mut self, settings: Settings<'_>, now: Instant) -> Vec<String> {
        settings.arm_refusal_wakeup();
        let mut lines = Vec::new();
        while let Some(refusal) = self.reader.next(settings) {
            lines.extend(self.line(settings, refusal, now));
        }
        lines
    }

    /// The line for a refusal, if it is to be logged.
    fn line(&mut self, settings: Settings<'_>, refusal: Refusal, now: Instant) -> Option<String> {
        let explained = Explained(refusal);
        let state = self.reasons.get_mut(refusal.reason as usize)?;
        let logged_at = state.logged_at;
        let verbosity = settings.refusal_verbosity();
        if refusal.reason == Counter::Accepted && verbosity != RefusalVerbosity::Off {
            // The table has recorded each stand-in once: without its line, nobody can tell whose it is.
            state.logged_at = Some(now);
            return Some(explained.stand_in_line(logged_at.is_none()));
        }
        match verbosity {
            RefusalVerbosity::Off => return None,
            RefusalVerbosity::Each => return Some(explained.line(1)),
            RefusalVerbosity::Throttled => {}
        }
        let is_throttled = logged_at.is_some_and(|at| now < at + LOG_INTERVAL);
        if is_throttled || !concerns_configuration(refusal.reason) {
            return None;
        }
        let counted = settings.counter(refusal.reason);
        let new_refusals = counted.saturating_sub(state.counted);
        *state = ReasonState {
            logged_at: Some(now),
            counted,
        };
        Some(explained.line(new_refusals))
    }
}

/// Whether the reason can lie in the configuration. Port scans, and health checks that only connect, close before a header was
/// complete; a program that stops closes its listener.
fn concerns_configuration(reason: Counter) -> bool {
    !matches!(reason, Counter::Closed | Counter::ListenerClosed)
}

/// A refusal, displayed with its cause and the remedy.
struct Explained(Refusal);

impl Explained {
    /// The line for a client that is shown by a stand-in; `is_first`: with the remedy.
    fn stand_in_line(&self, is_first: bool) -> String {
        let Refusal { peer, port, .. } = self.0;
        let shown = as_socket_family(peer, false);
        let remedy = if is_first {
            "; to show clients as they are, let the server listen on [::], and the balancer connect to its IPv6 address"
        } else {
            ""
        };
        format!(
            "peername: the server's IPv4 socket, port {port}, shows the client {peer} as {shown}: {} stands for its /64{remedy}",
            shown.ip()
        )
    }

    /// The line for so many refusals of this reason.
    fn line(&self, refusals: u64) -> String {
        match refusals {
            0 | 1 => format!("peername: refused a connection {self}"),
            _ => format!("peername: refused {refusals} connections, one of them {self}"),
        }
    }
}

impl Display for Explained {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Refusal { reason, peer, port } = self.0;
        let ip = peer.ip().to_canonical();
        let kind = if reason.is_client_refusal() {
            "client "
        } else {
            ""
        };
        write!(f, "from {kind}{peer} to port {port}: ")?;
        match reason {
            Counter::Untrusted if ip.is_loopback() => f.write_str(
                "this host itself is not trusted (if the balancer is here, add --trust loopback; --header optional accepts a \
                 client on this host without a header)",
            ),
            Counter::Untrusted => write!(
                f,
                "this peer is not trusted (if it is the balancer, add --trust {ip})"
            ),
            Counter::NotAHeader => f.write_str(
                "no PROXY header (let the balancer send one, with send-proxy in HAProxy or proxy_protocol in nginx; \
                 or set --header optional)",
            ),
            Counter::HeaderRefused => f.write_str(
                "its PROXY header names no IP address of a client (AF_UNSPEC, AF_UNIX), or --strict-header or \
                 --without-client refuses it (`peername decode` shows what it says)",
            ),
            Counter::Closed => f.write_str("closed before its PROXY header was complete"),
            Counter::Late => f.write_str(
                "its PROXY header was not complete in time (does the balancer send one? --header-timeout is the \
                 deadline)",
            ),
            Counter::Source => f.write_str(
                "its PROXY header names a client address that no remote client can have (--source-policy)",
            ),
            Counter::ClientDenied => {
                f.write_str("it is on the list of --deny-client (client_denied)")
            }
            Counter::ClientNotAllowed if ip.is_loopback() => f.write_str(
                "it is on this host, and not on the list of --allow-client, which `loopback` adds it to (client_not_allowed)",
            ),
            Counter::ClientNotAllowed => {
                write!(f, "it is not on the list of --allow-client{HEALTH_CHECK} (client_not_allowed)")
            }
            Counter::TlvMissing => write!(
                f,
                "its PROXY header lacks a TLV that --require-tlv lists{HEALTH_CHECK} (tlv_missing)"
            ),
            Counter::TlvMismatch => f.write_str(
                "a TLV of its PROXY header has none of the values that --require-tlv lists (tlv_mismatch)",
            ),
            Counter::Full => f.write_str(
                "the table of clients is full (raise --max-connections)",
            ),
            Counter::KeyInUse => f.write_str(
                "the kernel gave it the number of another open connection, so that the two could be confused (let the \
                 server listen by TCP, not by MPTCP)",
            ),
            Counter::NoKey => f.write_str(
                "the kernel here lists no MPTCP connections, so that the end of this one would not be noticed (in a unit: \
                 RestrictAddressFamilies=AF_NETLINK; or let the server listen by TCP, as Go's does with GODEBUG=multipathtcp=0)",
            ),
            Counter::WaiterUnavailable => f.write_str(
                "too many connections wait for the rest of their PROXY header (a higher limit of open files lets more \
                 wait)",
            ),
            Counter::WaiterUnreachable => f.write_str(
                "it has to wait at the supervisor, for the rest of its PROXY header or for the lists of clients, but the \
                 supervisor could not be asked: it has exited, or there was no descriptor for the request (raise the limit \
                 of open files)",
            ),
            Counter::ListenerUnreachable => f.write_str(
                "it waited at the supervisor, for the rest of its PROXY header or for the lists of clients, and this host \
                 may not connect to the server, so the server can't be woken for it (let the firewall's INPUT accept `-i lo`; \
                 a server that is bound to a device by SO_BINDTODEVICE needs --mode netns)",
            ),
            Counter::ListenerClosed => f.write_str(
                "while it waited at the supervisor, the program closed its listener; or that is in another network namespace \
                 than the supervisor",
            ),
            Counter::Accepted | Counter::PassedThrough | Counter::Parked => f.write_str("no reason"),
        }
    }
}

const HEALTH_CHECK: &str =
    "; if it is a balancer that checks this server's health, add it to --health-checks-from";
/// The minimum time between two reads.
const READ_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use peername_identity::Table;

    use super::*;

    fn memory() -> Vec<AtomicU64> {
        (0..Table::size(64) / 8)
            .map(|_| AtomicU64::new(0))
            .collect()
    }

    fn refusal(reason: Counter) -> Refusal {
        let peer = "192.0.2.7:4711".parse().expect("an address");
        Refusal {
            reason,
            peer,
            port: 443,
        }
    }

    #[test]
    fn each_reason_is_logged_once_in_an_interval_with_its_count() {
        let memory = memory();
        let settings = Table::new(&memory).expect("a table").settings();
        settings.set_refusal_verbosity(RefusalVerbosity::Throttled);
        let (mut log, start) = (RefusalLog::new(), Instant::now());
        let mut lines_at = |seconds, reasons: &[Counter]| {
            reasons
                .iter()
                .for_each(|&reason| _ = settings.record_refusal(refusal(reason)));
            log.lines(settings, start + Duration::from_secs(seconds))
        };
        let first = lines_at(0, &[Counter::Untrusted, Counter::Untrusted, Counter::Late]);
        assert_eq!(first.len(), 2, "{first:?}");
        assert!(first[0].contains("add --trust 192.0.2.7"), "{first:?}");
        assert!(first[1].contains("--header-timeout"), "{first:?}");
        assert_eq!(lines_at(9, &[Counter::Untrusted; 300]), [""; 0]);
        let later = lines_at(10, &[Counter::Untrusted]);
        assert_eq!(later.len(), 1, "{later:?}");
        assert!(later[0].contains("refused 301 connections"), "{later:?}");
    }

    #[test]
    fn connection_that_closes_early_is_logged_with_verbose_only() {
        let memory = memory();
        let settings = Table::new(&memory).expect("a table").settings();
        for (verbosity, lines) in [
            (RefusalVerbosity::Throttled, 0),
            (RefusalVerbosity::Each, 2),
        ] {
            settings.set_refusal_verbosity(verbosity);
            settings.record_refusal(refusal(Counter::Closed));
            let logged = RefusalLog::new().lines(settings, Instant::now());
            assert_eq!(logged.len(), lines, "{verbosity:?}: {logged:?}");
        }
    }
}
