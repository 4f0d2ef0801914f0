//! The destinations that were denied, for a summary at the end of a run.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{AuditRecord, FinalDecision};
use crate::host::HostPort;
use crate::request::remedy::Remedy;

/// The denied destinations of a process, with their number of denials. Bounded: the client chooses them.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_destination: BTreeMap<(HostPort, Option<Remedy>), DeniedDestination>,
    /// Connections to ports of the host's loopback that the kernel refused.
    refused: BTreeMap<u16, DeniedDestination>,
    /// Denials of destinations beyond [`MAX_DESTINATIONS`].
    others: u64,
}

/// A destination that was denied, or some of its requests that other options would allow than the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedDestination {
    /// The destination.
    pub to: HostPort,
    /// The number of denials.
    pub count: u64,
    /// The option that would allow it; `None` where no option would.
    pub remedy: Option<Remedy>,
    /// The reason of the first denial.
    pub reason: String,
}

impl DeniedDestination {
    /// The destination of a denied record, which is not counted yet.
    fn of(to: &HostPort, record: &AuditRecord) -> Self {
        Self {
            to: to.clone(),
            count: 0,
            remedy: record.remedy.clone(),
            reason: record.denial_reason(),
        }
    }
}

impl Denials {
    /// Counts the denial of a record, if it is one of a destination and not the fault of the request itself.
    pub(crate) fn count(&self, record: &AuditRecord) {
        let Some(to) = record.denied_destination() else {
            return;
        };
        let mut counts = self.0.lock();
        let key = (to.clone(), record.remedy.clone());
        let known = if record.code == Some("port_not_allowed") && to.host.is_localhost() {
            counts
                .refused
                .entry(to.port)
                .or_insert_with(|| DeniedDestination::of(to, record))
        } else if counts.by_destination.len() < MAX_DESTINATIONS
            || counts.by_destination.contains_key(&key)
        {
            counts
                .by_destination
                .entry(key)
                .or_insert_with(|| DeniedDestination::of(to, record))
        } else {
            counts.others += 1;
            return;
        };
        known.count += 1;
    }

    /// Forgets that the kernel refused connections to this port of the host's loopback.
    pub(crate) fn forget_refused(&self, port: u16) {
        self.0.lock().refused.remove(&port);
    }

    /// The denied destinations in the order of their names, and the number of denials of those beyond the limit.
    pub fn list(&self) -> (Vec<DeniedDestination>, u64) {
        let counts = self.0.lock();
        (
            counts
                .by_destination
                .values()
                .chain(counts.refused.values())
                .cloned()
                .collect(),
            counts.others,
        )
    }
}

impl AuditRecord {
    fn denied_destination(&self) -> Option<&HostPort> {
        let is_denied = match self.decision {
            FinalDecision::Denied | FinalDecision::CheckFailed => true,
            FinalDecision::Refused => {
                let codes = [
                    "name_mismatch",
                    "unknown_name",
                    "port_not_allowed",
                    "tcp_not_allowed",
                ];
                self.remedy.is_some() || self.code.is_some_and(|code| codes.contains(&code))
            }
            _ => false,
        };
        let target = self.target.as_ref().filter(|_| is_denied)?;
        Some(&target.to)
    }

    fn denial_reason(&self) -> String {
        match &self.reason {
            Some(reason) => reason.to_string(),
            None => match self.logged_error() {
                Some(error) => error.into_owned(),
                None => format!("denied by the check ({})", self.how),
            },
        }
    }
}

/// The destinations that are told apart.
const MAX_DESTINATIONS: usize = 1000;
