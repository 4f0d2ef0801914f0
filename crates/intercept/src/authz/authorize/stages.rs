//! The stages of a request before it is sent, [`Prepared`] and [`Allowed`], and an [`AllowedTunnel`].
//!
//! Only [`authorize`](super) can call the constructors of the last two.

use std::net::SocketAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Request};

use crate::authz::header_mutations::HeaderMutations;
use crate::authz::injected_headers::InjectedHeaders;
use crate::request::target::RequestTarget;

/// A request that is ready to be sent, but not authorized yet.
#[derive(Debug)]
pub struct Prepared {
    pub(super) head: Parts,
    allows_http2: bool,
}

impl Prepared {
    /// `allows_http2` tells whether the request may be sent to the origin over HTTP/2.
    pub(crate) fn new(head: Parts, allows_http2: bool) -> Self {
        Self { head, allows_http2 }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }
}

/// A request that may be sent, once, and to the target that was checked.
///
/// [`Upstream`](crate::upstream::Upstream) takes nothing else:
///
/// ```
/// use std::sync::Arc;
/// use peername_intercept::authz::Allowed;
/// use peername_intercept::upstream::{ClientLeases, RequestBody, Upstream};
///
/// async fn send(upstream: &Upstream, leases: &Arc<ClientLeases>, request: Allowed, body: RequestBody) {
///     let _ = upstream.send(leases, request, body).await;
/// }
/// ```
///
/// A request that was not authorized is not sent. Expected error: mismatched types (E0308), at `request`.
///
/// ```compile_fail,E0308
/// use std::sync::Arc;
/// use peername_intercept::authz::Prepared;
/// use peername_intercept::upstream::{ClientLeases, RequestBody, Upstream};
///
/// async fn send(upstream: &Upstream, leases: &Arc<ClientLeases>, request: Prepared, body: RequestBody) {
///     let _ = upstream.send(leases, request, body).await;
/// }
/// ```
///
/// Only `authorize` constructs one. Expected error: private fields (E0451).
///
/// ```compile_fail,E0451
/// use peername_intercept::authz::Allowed;
///
/// fn send_again(request: Allowed) -> Allowed {
///     Allowed { ..request }
/// }
/// ```
#[derive(Debug)]
pub struct Allowed {
    target: Arc<RequestTarget>,
    client: SocketAddr,
    request: Prepared,
    permission: Permission,
}

/// What the decision that allows a request means for it.
#[derive(Debug)]
pub(super) struct Permission {
    /// The header changes that the check service asks for; `None` if no check service is configured.
    pub(super) changes: Option<Arc<HeaderMutations>>,
    /// Whether the rule that allows the request names its port.
    pub(super) is_port_named: bool,
}

impl Allowed {
    /// Applies the header changes that the check service asks for.
    pub(super) fn new(
        target: &Arc<RequestTarget>,
        client: SocketAddr,
        mut request: Prepared,
        permission: Permission,
    ) -> Self {
        if let Some(changes) = &permission.changes {
            changes.apply_to_request(&mut request.head.headers);
        }
        Self {
            target: Arc::clone(target),
            client,
            request,
            permission,
        }
    }

    /// Adds the headers with secrets. This comes after the check and its header changes, because only the origin may see them.
    /// Returns their names.
    pub(super) fn add_secrets(&mut self, injected: &InjectedHeaders) -> Option<String> {
        let Parts {
            headers, method, ..
        } = &mut self.request.head;
        injected.add_to(headers, method, &self.target)
    }

    /// The changes that the check service asks for, of the headers of the request and of the response; `None` if no check
    /// service is configured.
    pub(crate) fn changes(&self) -> Option<Arc<HeaderMutations>> {
        self.permission.changes.clone()
    }

    /// Whether the rule that allows the request names its port.
    pub(crate) fn is_port_named(&self) -> bool {
        self.permission.is_port_named
    }

    pub(crate) fn target(&self) -> &RequestTarget {
        &self.target
    }

    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }

    /// Whether the request may be sent to the origin over HTTP/2.
    pub(crate) fn allows_http2(&self) -> bool {
        self.request.allows_http2
    }

    pub(crate) fn into_request<B>(self, body: B) -> Request<B> {
        Request::from_parts(self.request.head, body)
    }
}

/// A tunnel that may be opened, to the target that was checked.
///
/// ```
/// use peername_intercept::authz::AllowedTunnel;
/// use peername_intercept::upstream::Upstream;
///
/// async fn open(upstream: &Upstream, tunnel: AllowedTunnel) {
///     let _ = upstream.open_tunnel(&tunnel).await;
/// }
/// ```
///
/// An allowed request is no permission for a tunnel. Expected error: mismatched types (E0308), at `&tunnel`.
///
/// ```compile_fail,E0308
/// use peername_intercept::authz::Allowed;
/// use peername_intercept::upstream::Upstream;
///
/// async fn open(upstream: &Upstream, tunnel: Allowed) {
///     let _ = upstream.open_tunnel(&tunnel).await;
/// }
/// ```
///
/// Only `authorize` constructs one. Expected error: private fields (E0451).
///
/// ```compile_fail,E0451
/// use peername_intercept::authz::AllowedTunnel;
///
/// fn open_again(tunnel: AllowedTunnel) -> AllowedTunnel {
///     AllowedTunnel { ..tunnel }
/// }
/// ```
#[derive(Debug)]
pub struct AllowedTunnel {
    target: Arc<RequestTarget>,
    client: SocketAddr,
    is_relayed: bool,
}

impl AllowedTunnel {
    pub(super) fn new(target: &Arc<RequestTarget>, client: SocketAddr, is_relayed: bool) -> Self {
        Self {
            target: Arc::clone(target),
            client,
            is_relayed,
        }
    }

    /// Whether the tunnel was authorized to be relayed unopened: the requests in it are not decided on.
    pub(crate) fn is_relayed(&self) -> bool {
        self.is_relayed
    }

    pub(crate) fn target(&self) -> &RequestTarget {
        &self.target
    }

    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }
}
