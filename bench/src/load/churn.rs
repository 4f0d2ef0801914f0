//! Connect, header, 64 B, echo, close: what a relay spends on a connection's birth and death.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;

use crate::load::connection::MESSAGE;
use crate::load::{Connection, GLANCE, Meter, Metric, Plan, latencies, quantiles};
use crate::poller::{Interest, Poller};

/// Keeps `connections` exchanges going. One that fails is counted and the next is begun, so that
/// the error says how many; a single one fails the run.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Metric>> {
    let mut churn = Churn::new(plan)?;
    let meter = Meter::start(plan)?;
    for token in 0..plan.connections {
        churn.begin(token);
    }
    let mut ready = Vec::new();
    while churn.open > 0 {
        churn
            .poller
            .wait(GLANCE, &mut ready)
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
    metrics.extend(quantiles(&churn.latency));
    metrics.extend(usage.cpu_micros_per("CPU us/connection", done));
    Ok(metrics)
}

struct Churn<'a> {
    plan: &'a Plan,
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
    is_asked: bool,
}

impl<'a> Churn<'a> {
    fn new(plan: &'a Plan) -> Result<Self> {
        Ok(Self {
            plan,
            poller: Poller::new()?,
            slots: (0..plan.connections).map(|_| None).collect(),
            open: 0,
            next_serial: 1 + u64::from(plan.turn) * CLIENTS_OF_A_TURN,
            latency: latencies()?,
            failed: 0,
            first_failure: None,
        })
    }

    /// Fills an empty slot, or counts the failure to.
    fn begin(&mut self, token: usize) {
        let serial = self.next_serial;
        self.next_serial += 1;
        match Exchange::begin(self.plan, serial, &self.poller, token) {
            Ok(exchange) => {
                self.slots[token] = Some(exchange);
                self.open += 1;
            }
            Err(error) => self.fail(error),
        }
    }

    /// Moves one exchange on and empties its slot when it is over, well or badly.
    fn step(&mut self, token: usize) {
        let Some(exchange) = &mut self.slots[token] else {
            return;
        };
        match exchange.step(self.plan, &self.poller, token) {
            Ok(false) => return,
            Ok(true) => self
                .latency
                .saturating_record(exchange.begun.elapsed().as_nanos() as u64),
            Err(error) => {
                let serial = exchange.connection.serial();
                self.fail(error.context(format!("connection {serial}")));
            }
        }
        self.slots[token] = None;
        self.open -= 1;
    }

    fn fail(&mut self, error: anyhow::Error) {
        self.failed += 1;
        self.first_failure.get_or_insert(error);
    }
}

impl Exchange {
    fn begin(plan: &Plan, serial: u64, poller: &Poller, token: usize) -> Result<Self> {
        let begun = Instant::now();
        let mut connection = Connection::begin(plan, serial)?;
        // On loopback the handshake is mostly over by now, which saves a wait.
        let is_asked = connection.request(plan)?;
        let interest = if is_asked {
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
            is_asked,
        })
    }

    /// True once the whole echo is here.
    fn step(&mut self, plan: &Plan, poller: &Poller, token: usize) -> Result<bool> {
        if !self.is_asked {
            self.is_asked = self.connection.request(plan)?;
            if self.is_asked {
                poller
                    .modify(&self.connection, token, Interest::IN)
                    .context("epoll_ctl")?;
            }
            return Ok(false);
        }
        self.connection.receive(&mut [0; 2 * MESSAGE])?;
        Ok(self.connection.outstanding() == 0)
    }
}

/// More than there can be in the time that a turn has.
const CLIENTS_OF_A_TURN: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use crate::load::{Preface, claimed_source};

    use super::*;

    /// Those of the turn before are still in TIME_WAIT.
    #[test]
    fn each_turn_has_other_clients() {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let first_of = |turn| {
            let plan = Plan {
                target: nowhere,
                backend: nowhere,
                preface: Preface::Proxy,
                connections: 1,
                duration: Duration::ZERO,
                turn,
                watch: None,
            };
            Churn::new(&plan).expect("a poller").next_serial
        };
        assert_eq!(
            first_of(0),
            1,
            "number 0 is for who asks whom the backend sees"
        );
        // A turn has hardly a hundred thousand clients.
        let clients = |first: u64| (first..first + 100_000).map(claimed_source);
        let all: HashSet<_> = clients(first_of(1)).chain(clients(first_of(2))).collect();
        assert_eq!(all.len(), 200_000);
    }
}
