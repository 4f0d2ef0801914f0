//! 64 B there and back by UDP: what a relay spends on a datagram.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::datagram::{Kind, Tag};
use crate::load::balancer::{Balancer, Sockets, arrived};
use crate::load::connection::MESSAGE;
use crate::load::{GLANCE, Meter, Metric, Plan, latencies, quantiles};
use crate::poller::{Interest, Poller};

/// Each client has `window` datagrams under way, and sends its next one when one is back, or given up. A
/// lost one is counted; a wrong one is, too, and fails the run.
pub(crate) fn run(plan: &Plan, sockets: Sockets, window: usize) -> Result<Vec<Metric>> {
    let mut echoes = Echoes::open(plan, sockets, window)?;
    let meter = Meter::start(plan)?;
    echoes.play(&meter)?;
    let usage = meter.stop()?;
    echoes.faults.verdict()?;
    let (done, lost) = (echoes.latency.len(), echoes.lost());
    ensure!(done > 0, "all {lost} datagrams were lost");
    let mut metrics = vec![Metric::new("echoes/s", usage.rate(done))];
    metrics.extend(quantiles(&echoes.latency));
    metrics.extend(usage.cpu_micros_per("CPU us/echo", done));
    metrics.push(usage.cpu_micros_of_all_per("CPU us/echo of all", done));
    metrics.push(Metric::new("lost", lost as f64));
    Ok(metrics)
}

struct Echoes {
    balancer: Balancer,
    poller: Poller,
    players: Vec<Player>,
    window: usize,
    outstanding: usize,
    latency: Histogram<u64>,
    faults: Faults,
}

/// What a client waits for. Those given up may still come, once each.
#[derive(Default)]
struct Player {
    waiting: Vec<(u64, Instant)>,
    given_up: Vec<u64>,
}

#[derive(Default)]
struct Faults {
    count: u64,
    first: Option<anyhow::Error>,
}

impl Echoes {
    fn open(plan: &Plan, sockets: Sockets, window: usize) -> Result<Self> {
        let balancer = Balancer::open(plan, 1..=u32::try_from(plan.connections)?, sockets)?;
        let poller = Poller::new()?;
        for (token, socket) in balancer.sockets().iter().enumerate() {
            poller.add(socket, token, Interest::IN)?;
        }
        let players = balancer.clients.iter().map(|_| Player::default());
        Ok(Self {
            players: players.collect(),
            balancer,
            poller,
            window,
            outstanding: 0,
            latency: latencies()?,
            faults: Faults::default(),
        })
    }

    fn play(&mut self, meter: &Meter) -> Result<()> {
        for index in 0..self.players.len() {
            for _ in 0..self.window {
                self.serve(index)?;
            }
        }
        self.outstanding = self.players.len() * self.window;
        let mut ready = Vec::new();
        let mut next_look = Instant::now() + GLANCE;
        while self.outstanding > 0 {
            self.poller.wait(GLANCE, &mut ready).context("epoll_wait")?;
            let now = Instant::now();
            let is_running = meter.is_running(now);
            for &(token, _) in &ready {
                self.receive(token, is_running)?;
            }
            if now >= next_look {
                self.give_up(now, is_running)?;
                next_look = now + GLANCE;
            }
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) -> Result<()> {
        let served = Instant::now();
        // What the socket buffer does not take is lost like any other.
        let sequence = self.balancer.send(index, Kind::Echo, MESSAGE)?;
        self.players[index]
            .waiting
            .push((sequence.unwrap_or(NEVER), served));
        Ok(())
    }

    /// As many datagrams as can be there, or what is there. To look for one that can't be would be in
    /// vain.
    fn receive(&mut self, token: usize, is_running: bool) -> Result<()> {
        let mut buffer = [0; 2 * MESSAGE];
        for _ in 0..self.balancer.sharers() * self.window {
            let received = self.balancer.sockets()[token].recv(&mut buffer);
            let Some(length) = arrived(received).context("recv")? else {
                return Ok(());
            };
            match self.take(token, &buffer[..length]) {
                Ok(Some(index)) => self.go_on(index, is_running)?,
                Ok(None) => {}
                Err(fault) => self.faults.add(fault),
            }
        }
        Ok(())
    }

    /// Whose turn it is again; None if it was a late one.
    ///
    /// # Errors
    /// The datagram is not one that this socket was to get, or not what was sent.
    fn take(&mut self, token: usize, bytes: &[u8]) -> Result<Option<usize>> {
        if Kind::of(bytes) == Some(Kind::Who) {
            return Ok(None);
        }
        let tag = Tag::verify(bytes, MESSAGE)?;
        let index = self
            .balancer
            .clients
            .iter()
            .position(|it| it.serial == tag.serial);
        let index = index.with_context(|| format!("there is no client {}", tag.serial))?;
        ensure!(
            self.balancer.token(index) == token,
            "misdelivered: client {} got what is client {}'s",
            self.balancer.clients[token].serial,
            tag.serial
        );
        let Some(latency) = self.players[index].take(tag)? else {
            return Ok(None);
        };
        self.latency.saturating_record(latency.as_nanos() as u64);
        Ok(Some(index))
    }

    fn give_up(&mut self, now: Instant, is_running: bool) -> Result<()> {
        for index in 0..self.players.len() {
            for _ in 0..self.players[index].give_up(now) {
                self.go_on(index, is_running)?;
            }
        }
        Ok(())
    }

    fn go_on(&mut self, index: usize, is_running: bool) -> Result<()> {
        if is_running {
            return self.serve(index);
        }
        self.outstanding -= 1;
        Ok(())
    }

    fn lost(&self) -> usize {
        self.players
            .iter()
            .map(|player| player.given_up.len())
            .sum()
    }
}

impl Player {
    /// How long it took; None if it had been given up.
    ///
    /// # Errors
    /// It came before, or was never sent.
    fn take(&mut self, tag: Tag) -> Result<Option<Duration>> {
        let waited = self.waiting.iter().position(|it| it.0 == tag.sequence);
        if let Some(waited) = waited {
            let (_, served) = self.waiting.swap_remove(waited);
            return Ok(Some(served.elapsed()));
        }
        let late = self.given_up.iter().position(|it| *it == tag.sequence);
        let Some(late) = late else {
            bail!(
                "datagram {} of client {} came twice",
                tag.sequence,
                tag.serial
            );
        };
        self.given_up.swap_remove(late);
        Ok(None)
    }

    /// For how many it had waited too long.
    fn give_up(&mut self, now: Instant) -> usize {
        let is_late = |it: &mut (u64, Instant)| now.saturating_duration_since(it.1) >= TIMEOUT;
        let late = self.waiting.extract_if(.., is_late);
        let before = self.given_up.len();
        self.given_up.extend(late.map(|(sequence, _)| sequence));
        self.given_up.len() - before
    }
}

impl Faults {
    fn add(&mut self, fault: anyhow::Error) {
        self.count += 1;
        self.first.get_or_insert(fault);
    }

    /// # Errors
    /// There was one.
    fn verdict(&mut self) -> Result<()> {
        match self.first.take() {
            None => Ok(()),
            Some(first) => {
                Err(first).with_context(|| format!("{} datagrams were wrong, first", self.count))
            }
        }
    }
}

/// After this time a datagram counts as lost and the client goes on. Far above what waiting for a
/// processor takes, so that hardly one is given up that was only late.
const TIMEOUT: Duration = Duration::from_millis(300);

/// The number of a datagram that was not sent; no echo has it.
const NEVER: u64 = u64::MAX;
