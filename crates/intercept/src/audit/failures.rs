//! The origins that could not be reached, for a summary at the end of a run: a program often shows no more of it than a status.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{AuditRecord, FinalDecision};
use crate::host::HostPort;

/// The destinations of a process whose last request was allowed, and reached no origin. Bounded: the client chooses them.
#[derive(Debug, Default)]
pub struct Failures(Mutex<BTreeMap<HostPort, FailedDestination>>);

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
    /// Counts the request of a record, if no origin was reached for it; a request that reached it ends the failure.
    pub(crate) fn count(&self, record: &AuditRecord) {
        let Some(to) = record.target.as_ref().map(|target| &target.to) else {
            return;
        };
        let mut failures = self.0.lock();
        if record.upstream.is_some() {
            failures.remove(to);
        }
        if !record.has_unreached_origin()
            || failures.len() == MAX_DESTINATIONS && !failures.contains_key(to)
        {
            return;
        }
        let failed = failures
            .entry(to.clone())
            .or_insert_with(|| FailedDestination {
                to: to.clone(),
                count: 0,
                error: String::new(),
            });
        failed.count += 1;
        failed.error = record.failure();
    }

    /// The destinations in the order of their names.
    pub fn list(&self) -> Vec<FailedDestination> {
        self.0.lock().values().cloned().collect()
    }
}

impl AuditRecord {
    fn has_unreached_origin(&self) -> bool {
        let is_allowed = matches!(
            self.decision,
            FinalDecision::Allowed | FinalDecision::Unchecked | FinalDecision::FailedOpen
        );
        let codes = ["dns_", "connect_", "upstream_tls_", "upstream_proxy_"];
        let is_of_origin = |code: &str| codes.iter().any(|family| code.starts_with(family));
        is_allowed && self.code.is_some_and(is_of_origin)
    }

    fn failure(&self) -> String {
        let error = self.error.clone().unwrap_or_default();
        match self.hint {
            "" => error,
            hint => format!("{error}; {hint}"),
        }
    }
}

/// The destinations that are told apart.
const MAX_DESTINATIONS: usize = 1000;
