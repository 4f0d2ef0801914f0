//! Bulk transfer, as many bytes as possible both ways at once: the cost of a byte.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::compare::measurement::Metric;
use crate::host::poller::{Interest, Poller};
use crate::load::connection::Connection;
use crate::load::meter::{Meter, POLL_INTERVAL};
use crate::load::spec::LoadSpec;
use crate::wire::pattern;

/// Each connection sends while the socket buffer has space, and receives what the backend echoes. Counts the bytes
/// that came back correct; the proxy has carried each of them twice.
pub(crate) fn run(spec: &LoadSpec) -> Result<Vec<Metric>> {
    let mut streams = (1..=spec.connections as u64)
        .map(|serial| {
            Ok(Stream {
                connection: Connection::open(spec, serial)?,
                is_sending: true,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut poller = Poller::new()?;
    let mut scratch = vec![0; pattern::MAX_CHUNK_BYTES];
    let mut ready = Vec::new();
    let mut total = 0;
    let meter = Meter::start(spec)?;
    for (token, stream) in streams.iter().enumerate() {
        poller.add(&stream.connection, token, Interest::IN | Interest::OUT)?;
    }
    while streams.iter().any(|stream| !stream.is_finished()) {
        poller
            .wait(POLL_INTERVAL, &mut ready)
            .context("epoll_wait")?;
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
    /// Does one read and one write at most, so that no direction and no connection starves another. Returns the number of
    /// bytes that came back.
    fn step(&mut self, events: Interest, scratch: &mut [u8]) -> Result<usize> {
        if self.is_sending && events.contains(Interest::OUT) {
            self.connection.send(CHUNK_BYTES)?;
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

/// A common size of an application's writes. It decides how full the proxy's buffers are, so a change makes old
/// figures incomparable.
const CHUNK_BYTES: usize = 64 * 1024;
