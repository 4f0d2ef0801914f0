//! A connection's way through the stages.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use peername_relay::{Ahead, Limits, Method, Pair, Tally, relay};

use crate::accept::{Accepted, refuse};
use crate::connect::Connected;
use crate::counters::Counters;
use crate::frame::Framed;
use crate::log::Record;
use crate::outages::{self, Backend};
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
    pending: Pending,
}

impl Serve for TcpProxy {
    type By = Option<Arc<Service>>;

    fn by(&self, listener: ListenerId) -> Self::By {
        self.services.now().of(listener).map(Arc::clone)
    }

    fn serve(
        self: Arc<Self>,
        incoming: Incoming,
        by: Self::By,
    ) -> impl Future<Output = ()> + Send + 'static {
        // The way through the stages is the larger part of it, and over before the relay begins:
        // boxed, it is given back then, and an open connection is small.
        let way = Box::pin(self.pass(incoming, by));
        async move {
            let (mut record, connected) = way.await;
            let outcome = carry(connected, &mut record.tally).await;
            record.end(outcome);
        }
    }
}

/// What the relay needs of a connection.
type Carried = (Pair, Ahead, Method, Limits);

/// Not an async fn, which would have room for its arguments as long as it runs.
fn carry(
    connected: Result<Carried, Failure>,
    tally: &mut Tally,
) -> impl Future<Output = Outcome> + Send {
    match connected {
        Ok((pair, ahead, method, limits)) => {
            let relaying = relay(pair, ahead, method, limits, tally);
            Either::Left(relaying.map(Outcome::Relayed))
        }
        Err(failure) => Either::Right(ready(Outcome::Failed(failure))),
    }
}

impl TcpProxy {
    /// A proxy that serves each connection by its listener's service at the time it came.
    pub fn new(services: Current, counters: Arc<Counters>) -> Self {
        Self {
            services,
            counters,
            pending: Pending::default(),
        }
    }

    async fn pass(
        self: Arc<Self>,
        incoming: Incoming,
        by: Option<Arc<Service>>,
    ) -> (Record, Result<Carried, Failure>) {
        let mut record = Record::begin(&self.counters, &incoming);
        let connected = self.connect(incoming, by, &mut record).await;
        (record, connected)
    }

    async fn connect(
        &self,
        incoming: Incoming,
        by: Option<Arc<Service>>,
        record: &mut Record,
    ) -> Result<Carried, Failure> {
        let Some(service) = by else {
            return Err(refuse(&incoming.stream, Failure::NoService));
        };
        let rules = &service.rules;
        let accepted = Accepted::admit(incoming, &rules.config)?;
        let mut framed = Framed::read(accepted, &rules.config, &self.pending).await?;
        record.header(framed.claim, framed.tlvs.take());
        let permit = Permit::decide(&framed, framed.listener, rules)
            .map_err(|failure| refuse(&framed.stream, failure))?;
        record.target(permit.target());
        if permit.source().is_none() {
            framed.speak_for_nobody(&rules.config);
        }
        let Connected {
            downstream,
            upstream,
            ahead,
        } = Connected::open(framed, &permit, &service.connector).await?;
        outages::accepted(Backend::Tcp(permit.target().0));
        let pair = Pair {
            downstream,
            upstream,
        };
        Ok((pair, ahead, rules.config.relay, rules.config.limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is what an open connection costs, times thousands. Captured by an async block, or looked at by a match that
    /// goes on, what the stages had would stay in it: more than a hundred octets.
    #[test]
    fn an_open_connection_is_small() {
        let size = size_of_result(TcpProxy::serve);
        assert!(size <= 600, "{size} octets");
    }

    fn size_of_result<A, B, C, R>(_: impl FnOnce(A, B, C) -> R) -> usize {
        size_of::<R>()
    }
}
