//! The origins that could not be reached, for a summary at the end of a run: a program often shows no more of it than a status.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{AuditRecord, OriginContact};
use crate::host::HostPort;

/// The destinations of a process whose last request was allowed, and reached no origin. Bounded: the client chooses them.
#[derive(Debug, Default)]
pub struct Failures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_destination: BTreeMap<HostPort, FailedDestination>,
    /// Failures of destinations beyond [`MAX_DESTINATIONS`].
    others: u64,
}

/// A destination that could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDestination {
    /// The destination.
    pub to: HostPort,
    /// The number of requests that failed since the last one that did not.
    pub count: u64,
    /// What happened at the last one, and what to do about it.
    pub error: String,
}

impl Failures {
    /// Counts the request of a record, if it was to reach an origin and did not; a request that reached it ends the failure.
    pub(crate) fn count(&self, record: &AuditRecord) {
        let Some(target) = &record.target else {
            return;
        };
        match record.origin {
            OriginContact::NotTried => {}
            OriginContact::NotReached => self.add(&target.to, record),
            OriginContact::Reached => {
                self.0.lock().by_destination.remove(&target.to);
            }
        }
    }

    fn add(&self, to: &HostPort, record: &AuditRecord) {
        let error = record.error_with_hint().unwrap_or_default().into_owned();
        let mut counts = self.0.lock();
        if let Some(known) = counts.by_destination.get_mut(to) {
            known.count += 1;
            known.error = error;
        } else if counts.by_destination.len() < MAX_DESTINATIONS {
            let failed = FailedDestination {
                to: to.clone(),
                count: 1,
                error,
            };
            counts.by_destination.insert(to.clone(), failed);
        } else {
            counts.others += 1;
        }
    }

    /// The destinations in the order of their names, and the number of failures of those beyond the limit.
    pub fn list(&self) -> (Vec<FailedDestination>, u64) {
        let counts = self.0.lock();
        (
            counts.by_destination.values().cloned().collect(),
            counts.others,
        )
    }
}

/// The destinations that are told apart.
const MAX_DESTINATIONS: usize = 1000;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use peername_server::addr::PeerAddr;

    use super::*;
    use crate::request::client_info::ClientInfo;
    use crate::request::id::Id;
    use crate::request::target::RequestTarget;
    use crate::upstream::{FailedAttempt, UpstreamError};

    /// The record of a request to this port of `a.test` that failed.
    fn failed(port: u16, error: UpstreamError) -> AuditRecord {
        let client = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let client = ClientInfo::new(Id::next(), PeerAddr(client), client);
        let mut record = AuditRecord::new(Arc::new(client), "GET");
        let to = HostPort::parse(&format!("a.test:{port}")).unwrap();
        record.target = Some(Arc::new(RequestTarget::plain(to, None)));
        let failed = FailedAttempt::from(error);
        failed.note_in(&mut record, false);
        record.set_refused(&failed.into());
        record
    }

    fn refused(port: u16) -> AuditRecord {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        failed(port, UpstreamError::ConnectRefused(addr))
    }

    #[test]
    fn request_that_reaches_the_origin_ends_the_failure_without_a_response() {
        let failures = Failures::default();
        for error in [
            UpstreamError::Closed,
            UpstreamError::ResponseTimeout(Duration::ZERO),
            UpstreamError::BadResponse(String::new()),
        ] {
            failures.count(&refused(80));
            failures.count(&refused(80));
            failures.count(&failed(80, UpstreamError::Full(1)));
            let (listed, _) = failures.list();
            assert_eq!(listed.len(), 1, "{listed:?}");
            assert_eq!(listed[0].count, 2);
            assert!(
                listed[0]
                    .error
                    .ends_with("; nothing listens there, or a firewall rejects it")
            );
            failures.count(&failed(80, error));
            assert_eq!(failures.list(), (Vec::new(), 0));
        }
    }

    #[test]
    fn destinations_beyond_the_limit_are_counted_together() {
        let failures = Failures::default();
        for port in 1..=1002 {
            failures.count(&refused(port));
        }
        let (listed, others) = failures.list();
        assert_eq!((listed.len(), others), (MAX_DESTINATIONS, 2));
    }
}
