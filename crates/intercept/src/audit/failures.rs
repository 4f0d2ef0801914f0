//! The origins that could not be reached, for a summary at the end of a run: the program itself often shows only a status code.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::denials::bounded_entry;
use super::{AuditRecord, OriginContact};
use crate::host::HostPort;

/// The destinations of a process whose last request was allowed but did not reach its origin.
#[derive(Debug, Default)]
pub struct Failures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_destination: BTreeMap<HostPort, FailedDestination>,
    /// Failures of destinations beyond the limit.
    others: u64,
}

/// A destination that could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDestination {
    /// The destination.
    pub to: HostPort,
    /// The number of failed requests since one reached the origin.
    pub count: u64,
    /// The error of the last request, and what to do about it.
    pub error: String,
}

impl Failures {
    /// Counts a request that did not reach its origin. One that did removes the destination from the list.
    pub(crate) fn count(&self, record: &AuditRecord) {
        let Some(target) = &record.target else {
            return;
        };
        match record.origin {
            OriginContact::NotTried => {}
            OriginContact::NotReached => {
                let error = record.error_with_hint().unwrap_or_default().into_owned();
                let mut counts = self.0.lock();
                let new = || FailedDestination {
                    to: target.to.clone(),
                    count: 0,
                    error: String::new(),
                };
                match bounded_entry(&mut counts.by_destination, target.to.clone(), new) {
                    Some(failed) => (failed.count, failed.error) = (failed.count + 1, error),
                    None => counts.others += 1,
                }
            }
            OriginContact::Reached => {
                self.0.lock().by_destination.remove(&target.to);
            }
        }
    }

    /// The destinations, sorted, and the number of failures of destinations beyond the limit.
    pub fn list(&self) -> (Vec<FailedDestination>, u64) {
        let counts = self.0.lock();
        (
            counts.by_destination.values().cloned().collect(),
            counts.others,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use super::*;
    use crate::audit::denials::MAX_DESTINATIONS;
    use crate::upstream::{FailedAttempt, UpstreamError};

    /// The record of a request to this port of `a.test` that failed.
    fn failed_record(port: u16, error: UpstreamError) -> AuditRecord {
        let to = HostPort::parse(&format!("a.test:{port}")).unwrap();
        let mut record = AuditRecord::without_connection(to);
        let failed = FailedAttempt::from(error);
        failed.record_in(&mut record, false);
        record.set_refused(&failed.into());
        record
    }

    fn refused_record(port: u16) -> AuditRecord {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        failed_record(port, UpstreamError::ConnectRefused(addr))
    }

    #[test]
    fn retry_that_fails_before_it_connects_keeps_the_first_address() {
        let mut record = refused_record(80);
        let tried = *record.to_upstream.tried.lock();
        FailedAttempt::from(UpstreamError::Full(1)).record_in(&mut record, false);
        assert!(tried.is_some());
        assert_eq!(*record.to_upstream.tried.lock(), tried);
    }

    #[test]
    fn request_that_reaches_the_origin_ends_the_failure_without_a_response() {
        let failures = Failures::default();
        for error in [
            UpstreamError::Closed,
            UpstreamError::ResponseTimeout(Duration::ZERO),
            UpstreamError::BadResponse(String::new()),
        ] {
            failures.count(&refused_record(80));
            failures.count(&refused_record(80));
            failures.count(&failed_record(80, UpstreamError::Full(1)));
            let (listed, _) = failures.list();
            assert_eq!(listed.len(), 1, "{listed:?}");
            assert_eq!(listed[0].count, 2);
            assert!(
                listed[0]
                    .error
                    .ends_with("; nothing listens there, or a firewall rejects it")
            );
            failures.count(&failed_record(80, error));
            assert_eq!(failures.list(), (Vec::new(), 0));
        }
    }

    #[test]
    fn destinations_beyond_the_limit_are_counted_together() {
        let failures = Failures::default();
        for port in 1..=u16::try_from(MAX_DESTINATIONS + 2).unwrap() {
            failures.count(&refused_record(port));
        }
        let (listed, others) = failures.list();
        assert_eq!((listed.len(), others), (MAX_DESTINATIONS, 2));
    }
}
