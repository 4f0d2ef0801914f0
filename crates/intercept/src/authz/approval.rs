//! Approval of requests that no access rule matches, by a person at a terminal (`--ask`) or by a run that learns rules (`--learn`).

use std::fmt::{Debug, Display};
use std::pin::Pin;

use crate::host::HostPort;
use crate::request::remedy::Remedy;

/// Decides on requests that no access rule matches, before a check service is asked.
pub trait Approver: Debug + Send + Sync {
    /// Decides on one tunnel or request. Dropping the future withdraws the request.
    fn approve<'a>(&'a self, request: ApprovalRequest<'a>) -> ApprovalFuture<'a>;

    /// Whether it is asked even about addresses that are denied as destinations afterwards.
    fn lists_denied_addresses(&self) -> bool;
}

/// Resolves to the decision.
pub type ApprovalFuture<'a> = Pin<Box<dyn Future<Output = Approval> + Send + 'a>>;

/// A tunnel or a request that needs approval.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalRequest<'a> {
    /// The destination.
    pub to: &'a HostPort,
    /// The method as the client sent it; CONNECT for a tunnel that is relayed unopened.
    pub method: &'a str,
    /// The path without the query, as the client sent it; empty for a tunnel.
    pub path: &'a str,
}

/// A target about which the approver is not asked: it is denied as a destination, whatever the answer would be.
#[derive(Clone, Debug)]
pub(crate) struct Unapprovable {
    /// The reason of the denial, for the client and the log.
    pub(crate) reason: String,
    /// The option that would allow the request.
    pub(crate) remedy: Option<Remedy>,
}

impl Unapprovable {
    pub(crate) fn new(why: impl Display, remedy: Option<Remedy>) -> Self {
        let reason = format!("no rule allows it, and no answer of --ask could: {why}");
        Self { reason, remedy }
    }
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The reason of a denial, for the client and the log; `None` if the request is allowed.
    pub denial_reason: Option<&'static str>,
    /// How it was decided, for the log: [`TERMINAL`](super::TERMINAL) or [`LEARNED`](super::LEARNED).
    pub how: &'static str,
}
