//! 64 B there and back: what a relay spends on waking up and on calls, not on bytes.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::load::connection::MESSAGE;
use crate::load::{Connection, GLANCE, Meter, Metric, Plan, latencies, quantiles};
use crate::poller::{Interest, Poller};

/// Each connection sends its next message when the last one is back.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Metric>> {
    let mut players = open(plan)?;
    let mut poller = Poller::new()?;
    for (token, player) in players.iter().enumerate() {
        poller.add(&player.connection, token, Interest::IN)?;
    }
    let mut latency = latencies()?;
    let meter = Meter::start(plan)?;
    for player in &mut players {
        player.serve()?;
    }
    let mut outstanding = players.len();
    let mut ready = Vec::new();
    while outstanding > 0 {
        poller.wait(GLANCE, &mut ready).context("epoll_wait")?;
        let now = Instant::now();
        if meter.is_over(now) {
            bail!("{outstanding} of {} echoes were lost", latency.len());
        }
        for &(token, _) in &ready {
            let player = &mut players[token];
            let Some(nanos) = player.take()? else {
                continue;
            };
            latency.saturating_record(nanos);
            if meter.is_running(now) {
                player.serve()?;
            } else {
                outstanding -= 1;
            }
        }
    }
    let usage = meter.stop()?;
    let mut metrics = vec![Metric::new("echoes/s", usage.rate(latency.len()))];
    metrics.extend(quantiles(&latency));
    metrics.extend(usage.cpu_micros_per("CPU us/echo", latency.len()));
    Ok(metrics)
}

fn open(plan: &Plan) -> Result<Vec<Player>> {
    (1..=plan.connections as u64)
        .map(|serial| {
            let connection = Connection::open(plan, serial)?;
            Ok(Player {
                connection,
                served: Instant::now(),
            })
        })
        .collect()
}

struct Player {
    connection: Connection,
    served: Instant,
}

impl Player {
    fn serve(&mut self) -> Result<()> {
        self.served = Instant::now();
        match self.connection.send(MESSAGE)? {
            MESSAGE => Ok(()),
            some => bail!("an empty socket buffer took {some} of {MESSAGE} bytes"),
        }
    }

    /// The nanoseconds since the message was sent, once the whole echo is here.
    fn take(&mut self) -> Result<Option<u64>> {
        let serial = self.connection.serial();
        let mut scratch = [0; 2 * MESSAGE];
        self.connection
            .receive(&mut scratch)
            .with_context(|| format!("connection {serial}"))?;
        let is_whole = self.connection.outstanding() == 0;
        Ok(is_whole.then(|| self.served.elapsed().as_nanos() as u64))
    }
}
