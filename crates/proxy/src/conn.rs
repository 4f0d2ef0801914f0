//! Hands a TCP connection from stage to stage: accept, header, permit, connect, relay, outcome.

pub mod accept;
pub mod header;
pub(crate) mod outbound_header;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use peername_relay::{Limits, Method, Pair, Prefix, RelayStats, relay};
use peername_server::access::max_connections::MaxConnections;
use peername_server::listeners::ListenerId;
use peername_server::pending_headers::PendingHeaders;
use peername_server::workers::connections::ConnectionEntry;
use peername_server::workers::{Incoming, Serve};
use peername_sys::Transport;

use crate::backend::Backend;
use crate::conn::accept::{AcceptedConn, refuse};
use crate::conn::header::ClaimedConn;
use crate::connect::ConnectedPair;
use crate::outcome::{Failure, Outcome};
use crate::policy::permit::Permit;
use crate::service::{Service, ServiceHandle};
use crate::telemetry::counters::Counters;
use crate::telemetry::outages;
use crate::telemetry::record::connection::ConnectionRecord;

/// The TCP side of a proxy: what all its connections share.
#[derive(Debug)]
pub struct TcpProxy {
    services: ServiceHandle,
    counters: Arc<Counters>,
    pending: PendingHeaders,
}

/// The service of a connection: that of its listener at accept(2).
#[derive(Clone, Debug)]
pub struct AcceptingService {
    listener: ListenerId,
    service: Arc<Service>,
}

impl Serve for TcpProxy {
    type Context = Option<AcceptingService>;

    fn context(&self, listener: ListenerId) -> Self::Context {
        let service = Arc::clone(self.services.load().get(listener)?);
        Some(AcceptingService { listener, service })
    }

    fn serve(
        self: Arc<Self>,
        incoming: Incoming,
        entry: Arc<ConnectionEntry>,
        context: Self::Context,
    ) -> impl Future<Output = ()> + Send + 'static {
        // The future of the stages before the relay is larger than the relay's. The box frees its memory when the relay
        // begins, so the future of an open connection stays small.
        let record = ConnectionRecord::begin(&self.counters, &incoming, entry);
        let opening = Box::pin(self.open(incoming, record, context));
        async move {
            let (record, opened) = opening.await;
            let outcome = relay_opened(opened, record.stats()).await;
            record.end(outcome);
        }
    }
}

/// The arguments of [`relay`] that the stages before it determine.
type RelayArgs = (Pair, Prefix, Method, Limits);

/// Relays an opened connection. Not an async fn, whose future would hold the arguments until the relay ends.
fn relay_opened(
    opened: Result<RelayArgs, Failure>,
    stats: Arc<RelayStats>,
) -> impl Future<Output = Outcome> + Send {
    match opened {
        Ok((pair, prefix, method, limits)) => {
            Either::Left(relay(pair, prefix, method, limits, stats).map(Outcome::Relayed))
        }
        Err(failure) => Either::Right(ready(Outcome::Failed(failure))),
    }
}

impl TcpProxy {
    /// A proxy that serves each connection by the service that its listener has at the time of accept(2). The default limits of
    /// [`PendingHeaders`] are a share of `capacity`, the number of connections that the process may have; the workers enforce
    /// it.
    pub fn new(services: ServiceHandle, counters: Arc<Counters>, capacity: MaxConnections) -> Self {
        Self {
            services,
            counters,
            pending: PendingHeaders::new(capacity),
        }
    }

    async fn open(
        self: Arc<Self>,
        incoming: Incoming,
        mut record: ConnectionRecord,
        service: Option<AcceptingService>,
    ) -> (ConnectionRecord, Result<RelayArgs, Failure>) {
        let opened = self.pass_stages(incoming, service, &mut record).await;
        (record, opened)
    }

    async fn pass_stages(
        &self,
        incoming: Incoming,
        service: Option<AcceptingService>,
        record: &mut ConnectionRecord,
    ) -> Result<RelayArgs, Failure> {
        let Some(AcceptingService { listener, service }) = service else {
            return Err(refuse(&incoming.stream, Failure::NoService));
        };
        let rules = &service.rules;
        let accepted = AcceptedConn::admit(incoming, &rules.config)?;
        let mut claimed = ClaimedConn::read(accepted, &rules.config, &self.pending).await?;
        record.set_header(claimed.claims.facts, claimed.tlvs.take());
        let permit = Permit::decide(&claimed.claims, claimed.local, rules)
            .map_err(|failure| refuse(&claimed.stream, failure))?;
        let target = permit.target();
        record.set_target(target);
        let confirmed = {
            let services = self.services.load();
            let in_force = services.get(listener).map(|service| &service.rules);
            permit.confirm(&claimed.claims, in_force)
        };
        let permit = confirmed.map_err(|failure| refuse(&claimed.stream, failure))?;
        if permit.as_permit().source().is_none() {
            claimed.clear_claim(&rules.config);
            record.set_balancers_own();
        }
        let ConnectedPair {
            downstream,
            upstream,
            prefix,
        } = ConnectedPair::open(claimed, &permit, &service.connector)
            .await
            .inspect_err(|failure| {
                rules.report_failure(target, Transport::Tcp, failure);
            })?;
        outages::report_success(Backend::new(target.0, Transport::Tcp));
        let pair = Pair {
            downstream,
            upstream,
        };
        Ok((pair, prefix, rules.config.relay, rules.config.limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy holds one such future for each of thousands of open connections. If an async block captured the values
    /// of the early stages, or matched on them across an await, the future would be more than a hundred bytes larger.
    #[test]
    fn future_of_an_open_connection_is_small() {
        let size = size_of_result(TcpProxy::serve);
        assert!(size <= 600, "{size} bytes");
    }

    fn size_of_result<A, B, C, D, R>(_: impl FnOnce(A, B, C, D) -> R) -> usize {
        size_of::<R>()
    }
}
