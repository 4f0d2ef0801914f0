//! The counters of the shared table as Prometheus metrics, read when they are scraped.

use std::fmt;

use peername_identity::{Counter, Gauge, Table};
use peername_observe::encode::{counter, counters, gauge};
use peername_proxy::telemetry::advice;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

/// Collects the counters of the library and the supervisor.
#[derive(Debug)]
pub(super) struct ExecCollector {
    pub(super) table: Table<'static>,
    /// Whether the table is the sum of those of all containers of the agent.
    pub(super) is_agent: bool,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Ended {
    protocol: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// What a connection that is counted is for the metrics of `proxy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// The program has it.
    Served,
    /// It had no valid header in time.
    HeaderError,
    /// A rule refused it.
    Denied,
    /// It is counted again when it is decided.
    Undecided,
}

impl Collector for ExecCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_outcomes(&mut encoder)?;
        let settings = self.table.settings();
        counter(
            &mut encoder,
            "peername_exec_parked",
            "Connections that were kept for the header waiter, since their header was incomplete or is judged there",
            settings.counted(Counter::Parked),
        )?;
        for (name, help, value) in [
            (
                "peername_exec_pending_headers",
                "Connections that wait for the rest of their header now",
                settings.gauge(Gauge::PendingHeaders),
            ),
            (
                "peername_exec_ready_connections",
                "Connections with a complete header that wait for the program's next accept(2)",
                settings.gauge(Gauge::ReadyConnections),
            ),
            (
                "peername_exec_pending_accepts",
                "Calls of accept(2) that wait at the supervisor for a connection",
                settings.gauge(Gauge::PendingAccepts),
            ),
            (
                "peername_exec_table_entries",
                "Entries of the table of clients, with those of closed connections until the next sweep",
                settings.used(),
            ),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        let (name, help, value) = match self.is_agent {
            true => (
                "peername_agent_containers",
                "Containers that the agent supervises",
                settings.gauge(Gauge::Containers),
            ),
            false => (
                "peername_exec_table_slots",
                "Slots of the table of clients (--max-connections)",
                self.table.slots() as u64,
            ),
        };
        gauge(&mut encoder, name, help, value)
    }
}

impl ExecCollector {
    fn encode_outcomes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let settings = self.table.settings();
        let all = Counter::ALL.map(|one| (classify(one), settings.counted(one)));
        let decided = all
            .iter()
            .filter(|((class, _), _)| *class != Class::Undecided);
        let decided: Vec<_> = decided.collect();
        counter(
            encoder,
            "peername_connections_accepted",
            "TCP connections accepted, of which those that still wait for their header are left out",
            decided.iter().map(|(_, count)| count).sum(),
        )?;
        let ended = decided.iter().map(|((_, outcome), count)| {
            let protocol = "tcp";
            (Ended { protocol, outcome }, *count)
        });
        counters(
            encoder,
            "peername_connections",
            "Connections that were handed over to the program or refused",
            ended.filter(|(_, count)| *count > 0),
        )?;
        for (name, help, wanted) in [
            (
                "peername_header_errors",
                "Connections without a valid header in time, by reason",
                Class::HeaderError,
            ),
            (
                "peername_denied",
                "Connections that a rule or a limit refused, by reason",
                Class::Denied,
            ),
        ] {
            let of = decided.iter().filter(|((class, _), _)| *class == wanted);
            let reasons = of.map(|((_, reason), count)| (Reason { reason }, *count));
            counters(encoder, name, help, reasons.filter(|(_, count)| *count > 0))?;
        }
        Ok(())
    }
}

/// The class of a counter, and the outcome by the names that `proxy` has for the same.
fn classify(counter: Counter) -> (Class, &'static str) {
    match counter {
        Counter::Accepted => (Class::Served, "handed_over"),
        Counter::PassedThrough => (Class::Served, "passed_through"),
        Counter::Untrusted => (Class::Denied, "untrusted_peer"),
        Counter::NotAHeader => (Class::HeaderError, "no_header"),
        Counter::HeaderRefused => (Class::HeaderError, "header_refused"),
        Counter::Closed => (Class::HeaderError, "closed_without_header"),
        Counter::Late => (Class::HeaderError, "header_timeout"),
        Counter::Source => (Class::Denied, "source_refused"),
        Counter::ClientDenied => (Class::Denied, "client_denied"),
        Counter::ClientNotAllowed => (Class::Denied, "client_not_allowed"),
        Counter::TlvMissing => (Class::Denied, "tlv_missing"),
        Counter::TlvMismatch => (Class::Denied, "tlv_mismatch"),
        Counter::Full => (Class::Denied, "table_full"),
        Counter::WaiterUnavailable => (Class::Denied, "too_many_pending"),
        Counter::WaiterUnreachable => (Class::Denied, "supervisor_unreachable"),
        Counter::KeyInUse => (Class::Denied, "socket_key_in_use"),
        Counter::NoKey => (Class::Denied, "multipath_unlisted"),
        Counter::ListenerUnreachable => (Class::Denied, "listener_unreachable"),
        Counter::Parked => (Class::Undecided, "parked"),
    }
}

/// What an operator can do about an outcome; `None` where there is nothing to do.
pub(super) fn advise(reason: &str) -> Option<&'static str> {
    match reason {
        "source_refused" => Some(
            "The header names a client that no remote client can be: have the balancer accept no PROXY headers (--source-policy).",
        ),
        "header_refused" => Some(
            "The header names no IP address of a client, or --strict-header or --without-client refuses it: capture one and let `peername decode` explain it.",
        ),
        "table_full" => Some(
            "As many connections have a client as the table has slots: raise --max-connections.",
        ),
        "socket_key_in_use" => Some(
            "The kernel gave two open connections one number: let the server listen by TCP, not by MPTCP.",
        ),
        "multipath_unlisted" => Some(
            "The kernel lists no MPTCP connections: allow AF_NETLINK (RestrictAddressFamilies= in a unit), or let the server listen by TCP.",
        ),
        "too_many_pending" => Some(
            "Many connections send no header. If they are clients of yours, raise the limit of open files.",
        ),
        "supervisor_unreachable" => Some(
            "The supervisor waits for slow headers, and could not be asked to: it has exited, or there is no descriptor left. Restart the program, or raise the limit of open files.",
        ),
        "listener_unreachable" => Some(
            "This host may not connect to the server: let the firewall accept connections over lo. A server that is bound to a device needs --mode netns.",
        ),
        _ => advice::advise(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal without advice leaves the operator alone with a number.
    #[test]
    fn every_refusal_but_closed_connections_has_advice() {
        for counter in Counter::ALL {
            let (class, outcome) = classify(counter);
            let is_regular = matches!(class, Class::Served | Class::Undecided);
            let is_silent = is_regular || counter == Counter::Closed;
            assert_eq!(advise(outcome).is_none(), is_silent, "{outcome}");
        }
    }
}
