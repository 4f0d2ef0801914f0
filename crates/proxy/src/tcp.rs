//! A connection's way through the stages.

use std::sync::Arc;

use peername_relay::{Pair, relay};

use crate::accept::{Accepted, refuse};
use crate::connect::{Connected, Connector};
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
    pub(crate) connector: Connector,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pending: Arc<Pending>,
}

impl Serve for TcpProxy {
    async fn serve(&self, incoming: Incoming) {
        let mut record = Record::begin(&self.counters, &incoming);
        let outcome = self.carry(incoming, &mut record).await;
        record.end(outcome.unwrap_or_else(Outcome::Failed));
    }
}

impl TcpProxy {
    /// A proxy by these rules.
    ///
    /// # Errors
    ///
    /// As [`Connector::new`].
    pub fn new(rules: Arc<Rules>, counters: Arc<Counters>) -> peername_sys::Result<Self> {
        let upstream = rules.config.upstream.clone();
        let connector = Connector::new(upstream, Arc::clone(&counters))?;
        Ok(Self {
            rules,
            connector,
            counters,
            pending: Arc::default(),
        })
    }

    async fn carry(&self, incoming: Incoming, record: &mut Record) -> Result<Outcome, Failure> {
        let accepted = Accepted::admit(incoming, self)?;
        let mut framed = Framed::read(accepted, &self.rules.config).await?;
        record.header(framed.claim, framed.tlvs.take());
        let permit = Permit::decide(&framed, &self.rules)
            .map_err(|failure| refuse(&framed.stream, failure))?;
        record.target(permit.target());
        let Connected {
            downstream,
            upstream,
        } = Connected::open(framed, &permit, &self.connector).await?;
        let pair = Pair {
            downstream,
            upstream,
        };
        let (method, limits) = (self.rules.config.relay, self.rules.config.limits);
        Ok(Outcome::Relayed(
            relay(pair, method, limits, &mut record.tally).await,
        ))
    }
}
