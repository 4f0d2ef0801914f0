//! A connection's way through the stages.

use std::sync::Arc;

use peername_relay::{Pair, relay};
use tokio::time::Instant;

use crate::accept::{Accepted, refuse};
use crate::connect::Connected;
use crate::counters::Counters;
use crate::frame::Framed;
use crate::log::Record;
use crate::outcome::{Failure, Outcome};
use crate::pending::Pending;
use crate::permit::{Permit, Rules};
use crate::server::{Incoming, Serve};

/// What all connections share.
#[derive(Debug)]
pub struct TcpProxy {
    pub(crate) rules: Arc<Rules>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pending: Arc<Pending>,
}

impl Serve for TcpProxy {
    async fn serve(&self, incoming: Incoming) {
        self.counters.accepted();
        let mut record = Record::new(incoming.listener, incoming.peer, Instant::now());
        let outcome = match self.carry(incoming, &mut record).await {
            Ok(outcome) => outcome,
            Err(failure) => Outcome::Failed(failure),
        };
        self.counters.ended(&outcome);
        record.log(&outcome);
    }
}

impl TcpProxy {
    /// A proxy by these rules.
    pub fn new(rules: Arc<Rules>, counters: Arc<Counters>) -> Self {
        Self {
            rules,
            counters,
            pending: Arc::default(),
        }
    }

    async fn carry(&self, incoming: Incoming, record: &mut Record) -> Result<Outcome, Failure> {
        let config = &self.rules.config;
        let accepted = Accepted::admit(incoming, self)?;
        let mut framed = Framed::read(accepted, config).await?;
        record.header(framed.claim, framed.tlvs.take());
        let permit = Permit::decide(&framed, &self.rules)
            .map_err(|failure| refuse(&framed.stream, failure))?;
        record.target(permit.target());
        let Connected {
            downstream,
            upstream,
        } = Connected::open(framed, &permit, &config.upstream, &self.counters).await?;
        let pair = Pair {
            downstream,
            upstream,
        };
        Ok(Outcome::Relayed(
            relay(pair, config.relay, config.limits).await,
        ))
    }
}
