//! Connection churn (connect, header, 64 B, echo, close): the cost of opening and closing a connection.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;

use crate::compare::measurement::Metric;
use crate::host::poller::{Interest, Poller};
use crate::load::connection::{Connection, MESSAGE_BYTES};
use crate::load::meter::{Meter, POLL_INTERVAL, latency_metrics, new_latency_histogram};
use crate::load::spec::LoadSpec;

/// Keeps `connections` exchanges in flight. A failed exchange is counted and replaced, so that the error says how many
/// failed; a single failure fails the run.
pub(crate) fn run(spec: &LoadSpec) -> Result<Vec<Metric>> {
    let mut churn = Churn::new(spec)?;
    let meter = Meter::start(spec)?;
    for token in 0..spec.connections {
        churn.begin(token);
    }
    let mut ready = Vec::new();
    while churn.open > 0 {
        churn
            .poller
            .wait(POLL_INTERVAL, &mut ready)
            .context("epoll_wait")?;
        let now = Instant::now();
        if meter.is_over(now) {
            bail!(
                "{} connections never finished, {} did",
                churn.open,
                churn.latency.len()
            );
        }
        for &(token, _) in &ready {
            churn.step(token);
            if churn.slots[token].is_none() && meter.is_running(now) {
                churn.begin(token);
            }
        }
    }
    let usage = meter.stop()?;
    let done = churn.latency.len();
    if let Some(first) = churn.first_failure {
        return Err(first).with_context(|| {
            format!(
                "{} of {} connections failed, first",
                churn.failed,
                churn.failed + done
            )
        });
    }
    let mut metrics = vec![Metric::new("connections/s", usage.rate(done))];
    metrics.extend(latency_metrics(&churn.latency));
    metrics.extend(usage.cpu_micros_per("CPU us/connection", done));
    Ok(metrics)
}

struct Churn<'a> {
    spec: &'a LoadSpec,
    poller: Poller,
    slots: Vec<Option<Exchange>>,
    open: usize,
    next_serial: u64,
    latency: Histogram<u64>,
    failed: u64,
    first_failure: Option<anyhow::Error>,
}

struct Exchange {
    connection: Connection,
    begun: Instant,
    is_requested: bool,
}

impl<'a> Churn<'a> {
    fn new(spec: &'a LoadSpec) -> Result<Self> {
        Ok(Self {
            spec,
            poller: Poller::new()?,
            slots: (0..spec.connections).map(|_| None).collect(),
            open: 0,
            next_serial: 1 + u64::from(spec.turn) * SERIALS_PER_TURN,
            latency: new_latency_histogram()?,
            failed: 0,
            first_failure: None,
        })
    }

    /// Begins an exchange in an empty slot, or counts the failure.
    fn begin(&mut self, token: usize) {
        let serial = self.next_serial;
        self.next_serial += 1;
        match Exchange::begin(self.spec, serial, &self.poller, token) {
            Ok(exchange) => {
                self.slots[token] = Some(exchange);
                self.open += 1;
            }
            Err(error) => self.record_failure(error),
        }
    }

    /// Advances one exchange, and empties its slot when it has succeeded or failed.
    fn step(&mut self, token: usize) {
        let Some(exchange) = &mut self.slots[token] else {
            return;
        };
        match exchange.step(self.spec, &self.poller, token) {
            Ok(false) => return,
            Ok(true) => self
                .latency
                .saturating_record(exchange.begun.elapsed().as_nanos() as u64),
            Err(error) => {
                let serial = exchange.connection.serial();
                self.record_failure(error.context(format!("connection {serial}")));
            }
        }
        self.slots[token] = None;
        self.open -= 1;
    }

    fn record_failure(&mut self, error: anyhow::Error) {
        self.failed += 1;
        self.first_failure.get_or_insert(error);
    }
}

impl Exchange {
    fn begin(spec: &LoadSpec, serial: u64, poller: &Poller, token: usize) -> Result<Self> {
        let begun = Instant::now();
        let mut connection = Connection::begin(spec, serial)?;
        // On loopback the handshake is usually complete by now, which saves a wait.
        let is_requested = connection.request(spec)?;
        let interest = if is_requested {
            Interest::IN
        } else {
            Interest::OUT
        };
        poller
            .add(&connection, token, interest)
            .context("epoll_ctl")?;
        Ok(Self {
            connection,
            begun,
            is_requested,
        })
    }

    /// Advances the exchange; true once the whole echo has arrived.
    fn step(&mut self, spec: &LoadSpec, poller: &Poller, token: usize) -> Result<bool> {
        if !self.is_requested {
            self.is_requested = self.connection.request(spec)?;
            if self.is_requested {
                poller
                    .modify(&self.connection, token, Interest::IN)
                    .context("epoll_ctl")?;
            }
            return Ok(false);
        }
        self.connection.receive(&mut [0; 2 * MESSAGE_BYTES])?;
        Ok(self.connection.outstanding() == 0)
    }
}

/// Serial numbers reserved for each turn: more than it can use in its time.
const SERIALS_PER_TURN: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use crate::load::connection::claimed_source;
    use crate::load::spec::Preface;

    use super::*;

    /// The addresses of the previous turn's connections are still in TIME_WAIT.
    #[test]
    fn no_turn_reuses_the_clients_of_another() {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let first_serial = |turn| {
            let spec = LoadSpec {
                target: nowhere,
                backend: nowhere,
                preface: Preface::Proxy,
                connections: 1,
                duration: Duration::ZERO,
                turn,
                watch: None,
            };
            Churn::new(&spec).expect("a poller").next_serial
        };
        assert_eq!(
            first_serial(0),
            1,
            "number 0 is reserved for the source query"
        );
        // A turn has less than a hundred thousand clients.
        let clients = |first: u64| (first..first + 100_000).map(claimed_source);
        let all: HashSet<_> = clients(first_serial(1))
            .chain(clients(first_serial(2)))
            .collect();
        assert_eq!(all.len(), 200_000);
    }
}
