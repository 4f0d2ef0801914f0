//! The work that all clients of a load share: which connection is next, and the latencies so far.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::compare::measurement::Metric;
use crate::intercept::load::client::{Client, Session};
use crate::intercept::load::spec::{CERTIFICATES, CPU, LoadShape, Route, TlsLoadSpec};
use crate::intercept::load::usage::LoadUsage;
use crate::load::meter::{latency_metrics, new_latency_histogram};

/// The work that all clients share, and what they record.
pub(super) struct SharedWork {
    shape: LoadShape,
    /// The number of connections that wait for each other before their handshakes: with `at_once` the first one of each
    /// client, else none.
    first_connections: usize,
    start_barrier: Barrier,
    progress: RefCell<Progress>,
}

struct Progress {
    /// Connections begun so far.
    begun: usize,
    latency: Histogram<u64>,
    serials: HashSet<Vec<u8>>,
}

impl SharedWork {
    pub(super) fn new(shape: LoadShape) -> Result<Self> {
        let connections = shape.requests.div_ceil(shape.each);
        let first_connections = if shape.at_once {
            shape.clients.min(connections)
        } else {
            0
        };
        Ok(Self {
            shape,
            first_connections,
            start_barrier: Barrier::new(first_connections),
            progress: RefCell::new(Progress {
                begun: 0,
                latency: new_latency_histogram()?,
                serials: HashSet::new(),
            }),
        })
    }

    /// Runs one client: opens connections until all are begun.
    pub(super) async fn run_client(&self, client: &Client) -> Result<()> {
        while let Some(number) = self.next_connection() {
            let host = format!("host-{}", number % self.shape.hosts);
            timeout(
                CONNECTION_TIMEOUT,
                self.run_connection(client, number, &host),
            )
            .await
            .with_context(|| format!("no answer within {CONNECTION_TIMEOUT:?}"))
            .flatten()
            .with_context(|| host.clone())?;
        }
        Ok(())
    }

    fn next_connection(&self) -> Option<usize> {
        let mut progress = self.progress.borrow_mut();
        let number = progress.begun;
        progress.begun += 1;
        (number * self.shape.each < self.shape.requests).then_some(number)
    }

    async fn run_connection(&self, client: &Client, number: usize, host: &str) -> Result<()> {
        let mut start = Instant::now();
        let stream = client.connect(number, host).await?;
        if number < self.first_connections {
            self.start_barrier.wait().await;
            start = Instant::now();
        }
        let session = client.handshake(stream, host).await?;
        let serial = session.serial.clone();
        self.progress.borrow_mut().serials.insert(serial);
        if self.shape.streams > 1 {
            return self.run_streams(session).await;
        }
        self.send_requests(session, self.shape.each, start).await
    }

    async fn run_streams(&self, session: Session) -> Result<()> {
        let each = self.shape.each.div_ceil(self.shape.streams);
        let streams = (0..self.shape.streams).map(|_| async {
            let stream = session.new_stream().context("not HTTP/2")?;
            self.send_requests(stream, each, Instant::now()).await
        });
        futures_util::future::try_join_all(streams).await?;
        Ok(())
    }

    /// Sends `count` requests one after the other, and records the latency of each: from the response before, or for the first
    /// one from `start`. A `start` before the handshake makes the handshake a part of the first latency.
    async fn send_requests(
        &self,
        mut session: Session,
        count: usize,
        mut start: Instant,
    ) -> Result<()> {
        for _ in 0..count {
            session.request().await?;
            let now = Instant::now();
            let nanos = now.duration_since(start).as_nanos() as u64;
            self.progress.borrow_mut().latency.saturating_record(nanos);
            start = now;
        }
        Ok(())
    }

    pub(super) fn metrics(
        &self,
        spec: &TlsLoadSpec,
        usage: LoadUsage,
        handshakes: u64,
    ) -> Vec<Metric> {
        let progress = self.progress.borrow();
        let done = progress.latency.len() as f64;
        let mut metrics = Vec::new();
        if let Some(cpu) = usage.cpu {
            let cpu = cpu.as_secs_f64();
            metrics.push(Metric::new(CPU, 1000.0 * cpu / done));
            metrics.push(Metric::new(
                "busy %",
                100.0 * cpu / usage.elapsed.as_secs_f64(),
            ));
        }
        metrics.push(Metric::new(
            "requests/s",
            done / usage.elapsed.as_secs_f64(),
        ));
        metrics.extend(latency_metrics(&progress.latency));
        metrics.push(Metric::new(CERTIFICATES, progress.serials.len() as f64));
        metrics.push(Metric::new(
            "generator's s/1000",
            1000.0 * usage.own.as_secs_f64() / done,
        ));
        if matches!(spec.route, Route::Proxy(_)) {
            metrics.push(Metric::new("upstream handshakes", handshakes as f64));
        }
        metrics
    }
}

/// A connection that takes longer is lost.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
