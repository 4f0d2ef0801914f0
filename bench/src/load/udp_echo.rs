//! Small datagrams, 64 B there and back: the cost of a datagram.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::compare::measurement::Metric;
use crate::host::poller::{Interest, Poller};
use crate::load::balancer::{Balancer, SocketLayout, none_if_would_block};
use crate::load::connection::MESSAGE_BYTES;
use crate::load::meter::{Meter, POLL_INTERVAL, latency_metrics, new_latency_histogram};
use crate::load::spec::LoadSpec;
use crate::wire::datagram::{DatagramKind, Tag};

/// Each client has `window` datagrams in flight, and sends its next one when an echo has arrived or was abandoned. Lost
/// datagrams are counted. Wrong ones are counted, too, and fail the run.
pub(crate) fn run(spec: &LoadSpec, layout: SocketLayout, window: usize) -> Result<Vec<Metric>> {
    let mut echoes = Echoes::open(spec, layout, window)?;
    let meter = Meter::start(spec)?;
    echoes.run(&meter)?;
    let usage = meter.stop()?;
    echoes.faults.check()?;
    let (done, lost) = (echoes.latency.len(), echoes.lost());
    ensure!(done > 0, "all {lost} datagrams were lost");
    let mut metrics = vec![Metric::new("echoes/s", usage.rate(done))];
    metrics.extend(latency_metrics(&echoes.latency));
    metrics.extend(usage.cpu_micros_per("CPU us/echo", done));
    metrics.push(usage.cpu_micros_of_all_per("CPU us/echo of all", done));
    metrics.push(Metric::new("lost", lost as f64));
    Ok(metrics)
}

struct Echoes {
    balancer: Balancer,
    poller: Poller,
    clients: Vec<EchoClient>,
    window: usize,
    outstanding: usize,
    latency: Histogram<u64>,
    faults: Faults,
}

/// The datagrams of one client that are in flight. An abandoned one may still arrive, once.
#[derive(Default)]
struct EchoClient {
    in_flight: Vec<(u64, Instant)>,
    abandoned: Vec<u64>,
}

#[derive(Default)]
struct Faults {
    count: u64,
    first: Option<anyhow::Error>,
}

impl Echoes {
    fn open(spec: &LoadSpec, layout: SocketLayout, window: usize) -> Result<Self> {
        let balancer = Balancer::open(spec, 1..=u32::try_from(spec.connections)?, layout)?;
        let poller = Poller::new()?;
        for (token, socket) in balancer.sockets().iter().enumerate() {
            poller.add(socket, token, Interest::IN)?;
        }
        Ok(Self {
            clients: balancer
                .clients
                .iter()
                .map(|_| EchoClient::default())
                .collect(),
            balancer,
            poller,
            window,
            outstanding: 0,
            latency: new_latency_histogram()?,
            faults: Faults::default(),
        })
    }

    fn run(&mut self, meter: &Meter) -> Result<()> {
        for index in 0..self.clients.len() {
            for _ in 0..self.window {
                self.send_next(index)?;
            }
        }
        self.outstanding = self.clients.len() * self.window;
        let mut ready = Vec::new();
        let mut next_check = Instant::now() + POLL_INTERVAL;
        while self.outstanding > 0 {
            self.poller
                .wait(POLL_INTERVAL, &mut ready)
                .context("epoll_wait")?;
            let now = Instant::now();
            let is_running = meter.is_running(now);
            for &(token, _) in &ready {
                self.receive(token, is_running)?;
            }
            if now >= next_check {
                self.abandon_overdue(now, is_running)?;
                next_check = now + POLL_INTERVAL;
            }
        }
        Ok(())
    }

    fn send_next(&mut self, index: usize) -> Result<()> {
        let sent_at = Instant::now();
        // A datagram that the socket buffer does not take is lost like any other.
        let sequence = self
            .balancer
            .send(index, DatagramKind::Echo, MESSAGE_BYTES)?;
        self.clients[index]
            .in_flight
            .push((sequence.unwrap_or(NOT_SENT), sent_at));
        Ok(())
    }

    /// Receives until the socket is empty, or until as many datagrams have arrived as can be in flight: another read would
    /// only return EAGAIN.
    fn receive(&mut self, token: usize, is_running: bool) -> Result<()> {
        let mut buffer = [0; 2 * MESSAGE_BYTES];
        for _ in 0..self.balancer.clients_per_socket() * self.window {
            let received = self.balancer.sockets()[token].recv(&mut buffer);
            let Some(length) = none_if_would_block(received).context("recv")? else {
                return Ok(());
            };
            match self.match_echo(token, &buffer[..length]) {
                Ok(Some(index)) => self.continue_client(index, is_running)?,
                Ok(None) => {}
                Err(fault) => self.faults.add(fault),
            }
        }
        Ok(())
    }

    /// Matches an echo with its client and returns the client's index; None if the datagram had been abandoned.
    fn match_echo(&mut self, token: usize, bytes: &[u8]) -> Result<Option<usize>> {
        if DatagramKind::parse(bytes) == Some(DatagramKind::SourceQuery) {
            return Ok(None);
        }
        let tag = Tag::verify(bytes, MESSAGE_BYTES)?;
        let index = self
            .balancer
            .clients
            .iter()
            .position(|it| it.serial == tag.serial);
        let index = index.with_context(|| format!("there is no client {}", tag.serial))?;
        ensure!(
            self.balancer.socket_index(index) == token,
            "misdelivered: client {} got what is client {}'s",
            self.balancer.clients[token].serial,
            tag.serial
        );
        let Some(latency) = self.clients[index].complete(tag)? else {
            return Ok(None);
        };
        self.latency.saturating_record(latency.as_nanos() as u64);
        Ok(Some(index))
    }

    fn abandon_overdue(&mut self, now: Instant, is_running: bool) -> Result<()> {
        for index in 0..self.clients.len() {
            for _ in 0..self.clients[index].abandon_overdue(now) {
                self.continue_client(index, is_running)?;
            }
        }
        Ok(())
    }

    /// Sends the client's next datagram, or, once the time is over, lets its window shrink.
    fn continue_client(&mut self, index: usize, is_running: bool) -> Result<()> {
        if is_running {
            return self.send_next(index);
        }
        self.outstanding -= 1;
        Ok(())
    }

    fn lost(&self) -> usize {
        self.clients
            .iter()
            .map(|client| client.abandoned.len())
            .sum()
    }
}

impl EchoClient {
    /// Completes an in-flight datagram and returns its latency; None if it had been abandoned.
    ///
    /// # Errors
    /// The datagram has arrived before, or was never sent.
    fn complete(&mut self, tag: Tag) -> Result<Option<Duration>> {
        let position = self.in_flight.iter().position(|it| it.0 == tag.sequence);
        if let Some(position) = position {
            let (_, sent_at) = self.in_flight.swap_remove(position);
            return Ok(Some(sent_at.elapsed()));
        }
        let late = self.abandoned.iter().position(|it| *it == tag.sequence);
        let Some(late) = late else {
            bail!(
                "datagram {} of client {} came twice",
                tag.sequence,
                tag.serial
            );
        };
        self.abandoned.swap_remove(late);
        Ok(None)
    }

    /// Abandons the datagrams that are overdue; returns how many.
    fn abandon_overdue(&mut self, now: Instant) -> usize {
        let before = self.abandoned.len();
        let overdue = self.in_flight.extract_if(.., |(_, sent_at)| {
            now.saturating_duration_since(*sent_at) >= ECHO_TIMEOUT
        });
        self.abandoned.extend(overdue.map(|(sequence, _)| sequence));
        self.abandoned.len() - before
    }
}

impl Faults {
    fn add(&mut self, fault: anyhow::Error) {
        self.count += 1;
        self.first.get_or_insert(fault);
    }

    /// Returns the first fault as an error, with the number of faults.
    fn check(&mut self) -> Result<()> {
        match self.first.take() {
            None => Ok(()),
            Some(first) => {
                Err(first).with_context(|| format!("{} datagrams were wrong, first", self.count))
            }
        }
    }
}

/// After this time a datagram counts as lost and the client sends its next one. Far above any scheduling delay, so that
/// hardly any late datagram is abandoned.
const ECHO_TIMEOUT: Duration = Duration::from_millis(300);

/// The sequence number of a datagram that was not sent; no echo has it.
const NOT_SENT: u64 = u64::MAX;
