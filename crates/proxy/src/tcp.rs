//! A connection's way through the stages.

use std::sync::Arc;

use peername_relay::{Pair, relay};

use crate::accept::{Accepted, refuse};
use crate::connect::Connected;
use crate::counters::Counters;
use crate::frame::Framed;
use crate::log::Record;
use crate::outcome::{Failure, Outcome};
use crate::pending::Pending;
use crate::permit::Permit;
use crate::server::{Incoming, Serve};
use crate::service::{Current, ListenerId, Service};

/// What all connections share.
#[derive(Debug)]
pub struct TcpProxy {
    services: Current,
    counters: Arc<Counters>,
    pending: Arc<Pending>,
}

impl Serve for TcpProxy {
    type By = Option<Arc<Service>>;

    fn by(&self, listener: ListenerId) -> Self::By {
        self.services.now().of(listener).map(Arc::clone)
    }

    async fn serve(&self, incoming: Incoming, by: Self::By) {
        let mut record = Record::begin(&self.counters, &incoming);
        let outcome = match by {
            Some(service) => self.carry(incoming, &service, &mut record).await,
            None => Err(refuse(&incoming.stream, Failure::NoService)),
        };
        record.end(outcome.unwrap_or_else(Outcome::Failed));
    }
}

impl TcpProxy {
    /// A proxy that serves each connection by its listener's service at the time it came.
    pub fn new(services: Current, counters: Arc<Counters>) -> Self {
        Self {
            services,
            counters,
            pending: Arc::default(),
        }
    }

    async fn carry(
        &self,
        incoming: Incoming,
        service: &Service,
        record: &mut Record,
    ) -> Result<Outcome, Failure> {
        let rules = &service.rules;
        let accepted = Accepted::admit(incoming, &rules.config, &self.pending)?;
        let mut framed = Framed::read(accepted, &rules.config).await?;
        record.header(framed.claim, framed.tlvs.take());
        let permit = Permit::decide(&framed, framed.listener, rules)
            .map_err(|failure| refuse(&framed.stream, failure))?;
        record.target(permit.target());
        let Connected {
            downstream,
            upstream,
        } = Connected::open(framed, &permit, &service.connector).await?;
        let pair = Pair {
            downstream,
            upstream,
        };
        let (method, limits) = (rules.config.relay, rules.config.limits);
        Ok(Outcome::Relayed(
            relay(pair, method, limits, &mut record.tally).await,
        ))
    }
}
