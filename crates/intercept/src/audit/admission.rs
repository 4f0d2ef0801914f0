//! The log of admitted requests: each is recorded before it is sent, and denied if it can't be.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use http::Method;

use super::AuditRecord;
use crate::request::kind::RequestKind;
use crate::request::target::RequestTarget;

/// An allowed request that is about to be sent, or a tunnel that is about to be relayed. Text is escaped for a log.
#[derive(Clone, Debug)]
pub struct AdmittedRequest<'a> {
    /// The id in the audit line.
    pub id: String,
    /// The id of the client's connection in the audit line.
    pub connection: &'a str,
    /// The client's address and port.
    pub client: &'a str,
    /// The user of `--proxy-auth`.
    pub user: Option<Arc<str>>,
    /// Whether it is a request or a tunnel.
    pub kind: RequestKind,
    /// The destination's name or address.
    pub host: String,
    /// The destination's port.
    pub port: u16,
    /// The method.
    pub method: &'a Method,
    /// The path without the query, as in the audit line; empty for a tunnel.
    pub path: &'a str,
}

/// A log of admitted requests.
pub trait AdmissionLog: Debug + Send + Sync {
    /// Writes the record, and returns once the kernel has it. An error of write(2), such as ENOSPC, denies the request.
    fn record(&self, request: &AdmittedRequest<'_>) -> io::Result<()>;
}

impl<'a> AdmittedRequest<'a> {
    pub(crate) fn new(
        record: &'a AuditRecord,
        kind: RequestKind,
        target: &RequestTarget,
        method: &'a Method,
    ) -> Self {
        let client = &record.client.text;
        Self {
            id: record.id.to_string(),
            connection: &client.id,
            client: &client.addr,
            user: record.user.clone(),
            kind,
            host: target.host.to_string(),
            port: target.to.port,
            method,
            path: &record.path,
        }
    }
}
