//! Approval of requests on which no access rule decides, by something other than a check service: a person at a terminal, or a
//! list that is being written.

use std::fmt::Debug;
use std::pin::Pin;

use crate::host::HostPort;

/// Decides on what no access rule matches, before any check service is asked.
pub trait Approver: Debug + Send + Sync {
    /// Decides on one tunnel or request. Dropping the future withdraws it.
    fn approve<'a>(&'a self, request: ApprovalRequest<'a>) -> ApprovalFuture<'a>;
}

/// The approval, when there is one.
pub type ApprovalFuture<'a> = Pin<Box<dyn Future<Output = Approval> + Send + 'a>>;

/// What is to be approved.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalRequest<'a> {
    /// The destination.
    pub to: &'a HostPort,
    /// The method as the client sent it; CONNECT for a tunnel that is relayed unopened.
    pub method: &'a str,
    /// The path without the query, as the client sent it; empty for a tunnel.
    pub path: &'a str,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Why it is denied, for the client and the log; `None` if it is allowed.
    pub denied: Option<&'static str>,
    /// What decided, for the log.
    pub how: &'static str,
}
