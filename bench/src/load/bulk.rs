//! As many bytes as will go, both ways at once: what a relay spends on bytes.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::load::{Connection, GLANCE, Meter, Metric, Plan};
use crate::pattern;
use crate::poller::{Interest, Poller};

/// Each connection sends while the socket takes bytes, and receives what the backend echoes.
/// Counted are bytes that came back and were right; the proxy has carried each of them twice.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Metric>> {
    let mut streams = (1..=plan.connections as u64)
        .map(|serial| {
            Ok(Stream {
                connection: Connection::open(plan, serial)?,
                is_sending: true,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut poller = Poller::new()?;
    let mut scratch = vec![0; pattern::LONGEST];
    let mut ready = Vec::new();
    let mut total = 0;
    let meter = Meter::start(plan)?;
    for (token, stream) in streams.iter().enumerate() {
        poller.add(&stream.connection, token, Interest::IN | Interest::OUT)?;
    }
    while streams.iter().any(|stream| !stream.is_finished()) {
        poller.wait(GLANCE, &mut ready).context("epoll_wait")?;
        let now = Instant::now();
        if meter.is_over(now) {
            let lost: u64 = streams
                .iter()
                .map(|stream| stream.connection.outstanding())
                .sum();
            bail!("{lost} of {} bytes were lost", total + lost);
        }
        for &(token, events) in &ready {
            let stream = &mut streams[token];
            let serial = stream.connection.serial();
            total += stream
                .step(events, &mut scratch)
                .with_context(|| format!("connection {serial}"))? as u64;
            if stream.is_sending && !meter.is_running(now) {
                stream.is_sending = false;
                poller.modify(&stream.connection, token, Interest::IN)?;
            }
        }
    }
    let usage = meter.stop()?;
    let mut metrics = vec![Metric::new("MB/s", usage.rate(total) / 1e6)];
    if let Some(cpu) = usage.cpu {
        metrics.push(Metric::new(
            "CPU s/GB",
            cpu.as_secs_f64() * 1e9 / total as f64,
        ));
    }
    Ok(metrics)
}

struct Stream {
    connection: Connection,
    is_sending: bool,
}

impl Stream {
    /// One read and one write at most, so that neither direction nor connection starves another.
    fn step(&mut self, events: Interest, scratch: &mut [u8]) -> Result<usize> {
        if self.is_sending && events.contains(Interest::OUT) {
            self.connection.send(CHUNK)?;
        }
        if events.intersects(Interest::IN | Interest::ERR | Interest::HUP) {
            return self.connection.receive(scratch);
        }
        Ok(0)
    }

    fn is_finished(&self) -> bool {
        !self.is_sending && self.connection.outstanding() == 0
    }
}

/// What applications commonly write at a time. It decides how full the proxy's buffers come, so a
/// change makes old figures incomparable.
const CHUNK: usize = 64 * 1024;
