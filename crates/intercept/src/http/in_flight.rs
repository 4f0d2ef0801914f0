//! A request in flight, which keeps its connection from being idle and is counted and logged once, however it ends.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use http::request::Parts;

use super::client_connection::ClientConnection;
use crate::audit::denials::Denials;
use crate::audit::{AuditRecord, ExchangeEnd};
use crate::request::target::RequestTarget;
use crate::state::InterceptState;

/// The audit record of a request in flight. Dropping it counts the request, writes its audit line and exports its span.
#[derive(Debug)]
pub(crate) struct InFlightRecord {
    record: AuditRecord,
    state: Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    /// Whether it still counts as an exchange in flight on the connection.
    is_exchange: bool,
    /// For an opened tunnel: how many exchanges its connection had begun when it was opened.
    begun_before: Option<u64>,
}

impl InFlightRecord {
    /// Begins an exchange on this connection.
    pub(crate) fn begin(
        state: &Arc<InterceptState>,
        connection: &Arc<ClientConnection>,
        method: &str,
    ) -> Box<Self> {
        connection.exchanges.begin();
        let mut record = AuditRecord::new(Arc::clone(&connection.info), method);
        state.sinks.begin_span(&mut record);
        Box::new(Self {
            record,
            state: Arc::clone(state),
            connection: Arc::clone(connection),
            is_exchange: true,
            begun_before: None,
        })
    }

    pub(crate) fn connection(&self) -> &Arc<ClientConnection> {
        &self.connection
    }

    /// The operator's contact, which refusals name.
    pub(crate) fn contact(&self) -> Option<&str> {
        self.state.config.contact.as_deref()
    }

    /// Sets the target of the record and of its connection.
    pub(crate) fn set_target(&mut self, target: &Arc<RequestTarget>) {
        self.connection.set_target(target);
        self.record.target = Some(Arc::clone(target));
    }

    /// Sets the target that a request to a proxy names first, in case the request is refused.
    pub(crate) fn set_first_named(&mut self, request: &Parts) {
        if let Some(target) = RequestTarget::first_named_by(request) {
            self.set_target(&Arc::new(target));
        }
    }

    /// Leaves logging to the requests inside an opened tunnel, which have lines of their own. The tunnel's line is
    /// written only if no request has come by the time this is dropped.
    pub(crate) fn defer_to_tunnel_requests(&mut self, target: &Arc<RequestTarget>) {
        self.set_target(target);
        self.connection.set_opening(false);
        self.record.end = ExchangeEnd::Unused;
        self.begun_before = Some(self.connection.exchanges.total_begun());
        self.end_exchange();
    }

    /// Whether it is the record of a tunnel, and requests inside the tunnel have lines of their own.
    fn is_superseded(&self) -> bool {
        self.begun_before
            .is_some_and(|before| self.connection.exchanges.total_begun() > before)
    }

    /// Records a denial of a jailed program's request if the access lists deny its target and nothing else was decided: the
    /// jail's summary has to list every host that was denied, also if the request was refused for its form, or if the
    /// connection ended without a request.
    pub(crate) fn record_list_denial(&mut self) {
        if self.state.sinks.denials.is_none() || self.record.has_decision() {
            return;
        }
        if let Some(target) = self.record.target.clone() {
            let lists = self.state.lists();
            let authorizer =
                (self.state).authorizer_by_lists(&lists, &self.connection.info, &target);
            authorizer.record_denied_tunnel(&mut self.record);
        }
    }

    fn end_exchange(&mut self) {
        if std::mem::take(&mut self.is_exchange) {
            self.connection.exchanges.end();
        }
    }
}

impl Drop for InFlightRecord {
    fn drop(&mut self) {
        let is_superseded = self.is_superseded();
        if is_superseded {
            self.record.end = ExchangeEnd::Complete;
        } else {
            let entry = &self.connection.entry;
            if entry.end_reason().is_some() {
                self.record.mark_closed_by_admin(entry.stats().tally());
            }
            self.record_list_denial();
            let denials = self.state.sinks.denials.as_deref();
            if denials.is_some_and(Denials::is_ending) {
                self.record.set_cut_by_drain();
            }
            self.state.sinks.finish(&self.record);
        }
        // The span of a checked CONNECT is exported in any case: it is the parent of the check service's spans.
        if !is_superseded || self.record.is_asked() {
            self.state.sinks.export(&self.record);
        }
        self.end_exchange();
    }
}

impl Deref for InFlightRecord {
    type Target = AuditRecord;

    fn deref(&self) -> &AuditRecord {
        &self.record
    }
}

impl DerefMut for InFlightRecord {
    fn deref_mut(&mut self) -> &mut AuditRecord {
        &mut self.record
    }
}
