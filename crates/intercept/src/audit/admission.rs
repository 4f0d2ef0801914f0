//! A record of each request before it is sent: without one it is denied.

use std::fmt::Debug;
use std::io;

use http::Method;

use crate::request::id::Id;
use crate::request::kind::RequestKind;
use crate::request::target::RequestTarget;

/// An allowed request that is about to be sent, or a tunnel that is about to be relayed. Text is escaped for a log.
#[derive(Clone, Debug)]
pub struct AdmittedRequest<'a> {
    /// The id of its audit line.
    pub id: String,
    /// What it is.
    pub kind: RequestKind,
    /// The destination's name or address.
    pub host: String,
    /// The destination's port.
    pub port: u16,
    /// The method.
    pub method: &'a Method,
    /// The path without the query, as in its audit line; empty for a tunnel.
    pub path: &'a str,
}

/// Where admitted requests are recorded.
pub trait AdmissionLog: Debug + Send + Sync {
    /// Writes the record; returns once the kernel has it.
    ///
    /// # Errors
    ///
    /// Those of write(2), such as ENOSPC. The request is denied then.
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
