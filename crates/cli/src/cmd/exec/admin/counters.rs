//! The counters of the shared table as Prometheus metrics, read when they are scraped.

use std::fmt;

use peername_exec::notify::reasons::{self, Class, classify};
use peername_identity::{Counter, Gauge, Table};
use peername_observe::encode::{counter, counters, gauge};
use peername_proxy::telemetry::codes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

/// Collects the counters of the library and the supervisor.
#[derive(Debug)]
pub(super) struct ExecCollector {
    pub(super) table: Table<'static>,
    /// Whether the table is the sum of the tables of the agent's containers.
    pub(super) is_agent: bool,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct OutcomeLabels {
    protocol: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The connections that a counter has counted.
struct Counted {
    class: Class,
    outcome: &'static str,
    connections: u64,
}

impl Collector for ExecCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_outcomes(&mut encoder)?;
        let settings = self.table.settings();
        counter(
            &mut encoder,
            "peername_exec_parked",
            "Connections that were kept for the header waiter, since their header was incomplete or is judged there",
            settings.counter(Counter::Parked),
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
            (
                "peername_lists_stale",
                "1 while a list of clients can't be read and the previous one stays in force",
                settings.gauge(Gauge::StaleLists).min(1),
            ),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        let (name, help, value) = if self.is_agent {
            (
                "peername_agent_containers",
                "Containers that the agent supervises",
                settings.gauge(Gauge::Containers),
            )
        } else {
            (
                "peername_exec_table_slots",
                "Slots of the table of clients (--max-connections)",
                self.table.slots() as u64,
            )
        };
        gauge(&mut encoder, name, help, value)
    }
}

impl ExecCollector {
    fn encode_outcomes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let settings = self.table.settings();
        let decided: Vec<_> = Counter::ALL
            .into_iter()
            .map(|counter| {
                let (class, outcome) = classify(counter);
                Counted {
                    class,
                    outcome,
                    connections: settings.counter(counter),
                }
            })
            .filter(|counted| counted.class != Class::Undecided && counted.connections > 0)
            .collect();
        counter(
            encoder,
            "peername_connections_accepted",
            "TCP connections accepted, of which those that still wait at the supervisor are left out",
            decided.iter().map(|counted| counted.connections).sum(),
        )?;
        let outcomes = decided.iter().map(|counted| {
            let labels = OutcomeLabels {
                protocol: "tcp",
                outcome: counted.outcome,
            };
            (labels, counted.connections)
        });
        counters(
            encoder,
            "peername_connections",
            "Connections that were handed over to the program or refused",
            outcomes,
        )?;
        for (name, help, class) in [
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
            let reasons = decided
                .iter()
                .filter(|counted| counted.class == class)
                .map(|counted| {
                    let reason = counted.outcome;
                    (ReasonLabel { reason }, counted.connections)
                });
            counters(encoder, name, help, reasons)?;
        }
        Ok(())
    }
}

/// What an operator can do about an outcome; `None` where there is nothing to do.
pub(super) fn advise(outcome: &str) -> Option<&'static str> {
    Counter::ALL
        .into_iter()
        .find(|counter| classify(*counter).1 == outcome)
        .and_then(reasons::advice)
        .or_else(|| codes::advise(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal without advice leaves the operator alone with a number.
    #[test]
    fn every_refusal_but_closed_connections_has_advice() {
        for counter in Counter::ALL {
            let (class, outcome) = classify(counter);
            let is_refusal = matches!(class, Class::HeaderError | Class::Denied);
            let needs_advice = is_refusal && counter != Counter::Closed;
            assert_eq!(advise(outcome).is_some(), needs_advice, "{outcome}");
        }
    }
}
