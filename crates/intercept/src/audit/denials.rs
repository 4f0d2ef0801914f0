//! The destinations that were denied, for a summary at the end of a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{AuditRecord, FinalDecision, LIST};
use crate::host::HostPort;
use crate::request::refusal::RefusalKind;
use crate::request::remedy::Remedy;

/// The denied destinations of a process, with the number of denials of each.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_destination: BTreeMap<DenialKey, DeniedDestination>,
    /// The ports of the host's loopback to which connections were refused.
    refused: BTreeMap<u16, DeniedDestination>,
    /// Denials of destinations beyond the limit.
    others: u64,
    /// Connections and requests that the proxy has cut before a decision.
    undecided: u64,
    /// Whether the proxy cuts what is open.
    is_ending: bool,
}

/// An accepted connection that has no audit record yet. If it is dropped before it has one, it counts as undecided.
#[derive(Debug)]
pub(crate) struct UnrecordedConnection(Option<Arc<Denials>>);

impl UnrecordedConnection {
    /// Begins without a record. Nothing is counted where denials are not summed up.
    pub(crate) fn new(denials: Option<Arc<Denials>>) -> Self {
        Self(denials)
    }

    /// Notes that the connection has a record.
    pub(crate) fn set_recorded(mut self) {
        self.0 = None;
    }
}

impl Drop for UnrecordedConnection {
    fn drop(&mut self) {
        if let Some(denials) = &self.0 {
            denials.0.lock().undecided += 1;
        }
    }
}

/// What denials have in common that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DenialKey {
    /// The destination.
    pub to: HostPort,
    /// The option that would allow these requests; `None` if no option would.
    pub remedy: Option<Remedy>,
    /// The reason, if no option would allow the request and the access lists have decided: a check service may give each of
    /// its denials a reason of its own.
    reason: Option<Arc<str>>,
}

/// A denied destination, and the option that would allow it. If different options would allow its requests, or its requests are
/// denied by the access lists for different reasons, it is listed once for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedDestination {
    /// What these denials have in common.
    pub key: DenialKey,
    /// The number of denials.
    pub count: u64,
    /// The reason of the first denial.
    pub reason: String,
}

impl DeniedDestination {
    /// Creates the entry of a denied request, which is not counted yet.
    fn new(to: &HostPort, record: &AuditRecord) -> Self {
        Self {
            key: DenialKey::new(to, record),
            count: 0,
            reason: record.denial_reason(),
        }
    }
}

impl DenialKey {
    fn new(to: &HostPort, record: &AuditRecord) -> Self {
        let is_list_reason = record.remedy.is_none() && record.how == LIST;
        Self {
            to: to.clone(),
            remedy: record.remedy.clone(),
            reason: record.reason.clone().filter(|_| is_list_reason),
        }
    }
}

impl Denials {
    /// Counts a denied request, unless the request itself and not its destination is the reason.
    pub(crate) fn count(&self, record: &AuditRecord) {
        if record.is_cut_undecided() {
            self.0.lock().undecided += 1;
        }
        let Some(to) = record.denied_destination() else {
            return;
        };
        let mut counts = self.0.lock();
        let new = || DeniedDestination::new(to, record);
        let denied = if record.refusal_kind == RefusalKind::ClosedPort && to.host.is_localhost() {
            Some(counts.refused.entry(to.port).or_insert_with(new))
        } else {
            let key = DenialKey::new(to, record);
            bounded_entry(&mut counts.by_destination, key, new)
        };
        match denied {
            Some(denied) => denied.count += 1,
            None => counts.others += 1,
        }
    }

    /// Notes that all connections are cut from now on, so that what ends without a decision has not left by itself.
    pub fn set_ending(&self) {
        self.0.lock().is_ending = true;
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.0.lock().is_ending
    }

    /// The number of connections and requests that the proxy itself has cut before they were decided.
    pub fn undecided(&self) -> u64 {
        self.0.lock().undecided
    }

    /// Forgets the refused connections to this port of the host's loopback.
    pub(crate) fn forget_refused(&self, port: u16) {
        self.0.lock().refused.remove(&port);
    }

    /// The denied destinations and the refused ports, sorted, and the number of denials of destinations beyond the limit.
    pub fn list(&self) -> (Vec<DeniedDestination>, u64) {
        let counts = self.0.lock();
        let all = counts
            .by_destination
            .values()
            .chain(counts.refused.values());
        let mut listed: Vec<_> = all.cloned().collect();
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        (listed, counts.others)
    }
}

impl AuditRecord {
    /// The destination, if it is the reason of a denial.
    fn denied_destination(&self) -> Option<&HostPort> {
        let is_denied = match self.decision {
            FinalDecision::Denied | FinalDecision::CheckFailed => true,
            FinalDecision::Refused => self.has_decision(),
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

/// The entry of a key, which is added unless there are [`MAX_DESTINATIONS`] already: the client chooses the destinations.
pub(super) fn bounded_entry<K: Ord, V>(
    entries: &mut BTreeMap<K, V>,
    key: K,
    new: impl FnOnce() -> V,
) -> Option<&mut V> {
    if entries.len() >= MAX_DESTINATIONS && !entries.contains_key(&key) {
        return None;
    }
    Some(entries.entry(key).or_insert_with(new))
}

/// The maximum number of destinations that a summary lists.
pub(super) const MAX_DESTINATIONS: usize = 1000;

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::request::refusal::Refusal;

    #[test]
    fn denied_destination_counts_although_its_certificate_is_refused() {
        let denials = Denials::default();
        for (to, is_denied) in [("a.test:443", false), ("b.test:443", true)] {
            let mut record = AuditRecord::without_connection(HostPort::parse(to).unwrap());
            record.set_decision(FinalDecision::Allowed, LIST);
            if is_denied {
                record.set_tunnel_denied(false);
            }
            let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "code", "detail");
            record.set_unanswered(&refusal.with_kind(RefusalKind::RateLimit));
            denials.count(&record);
        }
        assert_eq!(listed(&denials), ["b.test:443"]);
    }

    #[test]
    fn refused_ports_are_sorted_among_the_other_destinations() {
        let denials = Denials::default();
        for (to, kind) in [
            ("b.test:80", RefusalKind::Destination),
            ("z.test:80", RefusalKind::Destination),
            ("localhost:81", RefusalKind::ClosedPort),
        ] {
            let mut record = AuditRecord::without_connection(HostPort::parse(to).unwrap());
            let refusal = Refusal::new(StatusCode::FORBIDDEN, "code", "detail").with_kind(kind);
            record.set_unanswered(&refusal);
            denials.count(&record);
        }
        assert_eq!(listed(&denials), ["b.test:80", "localhost:81", "z.test:80"]);
    }

    fn listed(denials: &Denials) -> Vec<String> {
        let (listed, _) = denials.list();
        listed
            .iter()
            .map(|denied| denied.key.to.to_string())
            .collect()
    }
}
