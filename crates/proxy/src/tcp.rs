//! A connection's way through the stages.

use std::sync::Arc;

use peername_relay::{Pair, relay};

use crate::accept::Accepted;
use crate::config::Config;
use crate::connect::{Connected, Connector};
use crate::counters::Counters;
use crate::frame::Framed;
use crate::log::Record;
use crate::outcome::{Failure, Outcome};
use crate::own_addresses::OwnAddresses;
use crate::pending::Pending;
use crate::permit::Permit;
use crate::server::{Incoming, Serve};
use crate::watchdog::ReplyPath;

/// What all connections share.
#[derive(Debug)]
pub struct TcpProxy {
    pub(crate) config: Arc<Config>,
    pub(crate) connector: Connector,
    pub(crate) counters: Arc<Counters>,
    pub(crate) own_addresses: OwnAddresses,
    pub(crate) reply_path: Arc<ReplyPath>,
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
    /// A proxy by this configuration. Whoever makes it keeps `own_addresses` and `reply_path` fresh.
    ///
    /// # Errors
    ///
    /// As [`Connector::new`].
    pub fn new(
        config: Arc<Config>,
        counters: Arc<Counters>,
        own_addresses: OwnAddresses,
        reply_path: Arc<ReplyPath>,
    ) -> peername_sys::Result<Self> {
        let connector = Connector::new(config.upstream.clone(), Arc::clone(&counters))?;
        Ok(Self {
            config,
            connector,
            counters,
            own_addresses,
            reply_path,
            pending: Arc::default(),
        })
    }

    async fn carry(&self, incoming: Incoming, record: &mut Record) -> Result<Outcome, Failure> {
        let accepted = Accepted::admit(incoming, self)?;
        let mut framed = Framed::read(accepted, &self.config).await?;
        record.header(framed.claim, framed.tlvs.take());
        let permit = Permit::decide(&framed, self)?;
        record.target(permit.target());
        let Connected {
            downstream,
            upstream,
        } = Connected::open(framed, &permit, &self.connector).await?;
        let pair = Pair {
            downstream,
            upstream,
        };
        let (method, limits) = (self.config.relay, self.config.limits);
        Ok(Outcome::Relayed(
            relay(pair, method, limits, &mut record.tally).await,
        ))
    }
}
