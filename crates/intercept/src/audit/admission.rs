//! The log of admitted requests: each is recorded before it is sent, and denied if it can't be.

use std::fmt::Debug;
use std::io;

use http::Method;

use crate::request::id::Id;
use crate::request::kind::RequestKind;
use crate::request::target::RequestTarget;

/// An allowed request that is about to be sent, or a tunnel that is about to be relayed. Text is escaped for a log.
#[derive(Clone, Debug)]
pub struct AdmittedRequest<'a> {
    /// The id in the audit line.
    pub id: String,
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
        id: &Id,
        kind: RequestKind,
        target: &RequestTarget,
        method: &'a Method,
        path: &'a str,
    ) -> Self {
        Self {
            id: id.to_string(),
            kind,
            host: target.host.to_string(),
            port: target.to.port,
            method,
            path,
        }
    }
}
