//! Small messages, 64 B there and back: the cost of a wake-up and its system calls, not of bytes.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::compare::measurement::Metric;
use crate::host::poller::{Interest, Poller};
use crate::load::connection::{Connection, MESSAGE_BYTES};
use crate::load::meter::{Meter, POLL_INTERVAL, latency_metrics, new_latency_histogram};
use crate::load::spec::LoadSpec;

/// Each connection sends its next message when the echo of the last one has arrived.
pub(crate) fn run(spec: &LoadSpec) -> Result<Vec<Metric>> {
    let mut clients = open(spec)?;
    let mut poller = Poller::new()?;
    for (token, client) in clients.iter().enumerate() {
        poller.add(&client.connection, token, Interest::IN)?;
    }
    let mut latency = new_latency_histogram()?;
    let meter = Meter::start(spec)?;
    for client in &mut clients {
        client.send_next()?;
    }
    let mut outstanding = clients.len();
    let mut ready = Vec::new();
    while outstanding > 0 {
        poller
            .wait(POLL_INTERVAL, &mut ready)
            .context("epoll_wait")?;
        let now = Instant::now();
        if meter.is_over(now) {
            bail!("{outstanding} of {} echoes were lost", latency.len());
        }
        for &(token, _) in &ready {
            let client = &mut clients[token];
            let Some(nanos) = client.receive_echo()? else {
                continue;
            };
            latency.saturating_record(nanos);
            if meter.is_running(now) {
                client.send_next()?;
            } else {
                outstanding -= 1;
            }
        }
    }
    let usage = meter.stop()?;
    let mut metrics = vec![Metric::new("echoes/s", usage.rate(latency.len()))];
    metrics.extend(latency_metrics(&latency));
    metrics.extend(usage.cpu_micros_per("CPU us/echo", latency.len()));
    Ok(metrics)
}

fn open(spec: &LoadSpec) -> Result<Vec<EchoClient>> {
    (1..=spec.connections as u64)
        .map(|serial| {
            let connection = Connection::open(spec, serial)?;
            Ok(EchoClient {
                connection,
                sent_at: Instant::now(),
            })
        })
        .collect()
}

struct EchoClient {
    connection: Connection,
    sent_at: Instant,
}

impl EchoClient {
    fn send_next(&mut self) -> Result<()> {
        self.sent_at = Instant::now();
        match self.connection.send(MESSAGE_BYTES)? {
            MESSAGE_BYTES => Ok(()),
            sent => bail!("an empty socket buffer took {sent} of {MESSAGE_BYTES} bytes"),
        }
    }

    /// Receives; returns the nanoseconds since the message was sent once the whole echo has arrived.
    fn receive_echo(&mut self) -> Result<Option<u64>> {
        let serial = self.connection.serial();
        let mut scratch = [0; 2 * MESSAGE_BYTES];
        self.connection
            .receive(&mut scratch)
            .with_context(|| format!("connection {serial}"))?;
        let is_whole = self.connection.outstanding() == 0;
        Ok(is_whole.then(|| self.sent_at.elapsed().as_nanos() as u64))
    }
}
