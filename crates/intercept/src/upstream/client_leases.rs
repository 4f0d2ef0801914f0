//! Leases of connections to origins. A connection is leased to one client connection at a time.
//!
//! HTTP/2 would let several clients share a connection. But a client that keeps its streams open would leave none for the
//! others, and a client that does not read its responses would fill the window of the whole connection (RFC 9113, section
//! 5.2.1).
//!
//! An idle connection may be leased to any client, unless NTLM or Negotiate may have authenticated it: these authenticate a
//! connection rather than a request (RFC 4559, section 6). Such a connection stays private to its client. It is in the idle
//! pool, so that it expires and can be evicted, but under a key that no other client connection has.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::connection::{Connection, ConnectionInfo, Sender, StreamLimit};
use super::error::FailedAttempt;
use super::idle_pool::{IdlePool, PoolKey};
use super::request_body::{RequestBody, Sending};
use crate::request::id::Id;

/// The leases of one client connection.
#[derive(Debug)]
pub struct ClientLeases {
    id: Id,
    pub(super) client: IpAddr,
    /// The pool to which connections return.
    pool: Arc<IdlePool>,
    /// The leased HTTP/2 connections, which take concurrent requests.
    http2: Mutex<Vec<Weak<Http2Lease>>>,
    /// Whether the pool may hold connections that are private to this client connection.
    has_private: AtomicBool,
    /// Locked while a request dials.
    pub(super) dialling: tokio::sync::Mutex<FailedDials>,
}

/// The last failed dial of each key, for the requests that have waited for it. Only of the [`MAX_FAILED_DIALS`] keys that failed
/// last, because the client chooses the keys.
#[derive(Debug, Default)]
pub(super) struct FailedDials(Vec<FailedDial>);

#[derive(Debug)]
struct FailedDial {
    at: Instant,
    key: PoolKey,
    cause: FailedAttempt,
}

impl FailedDials {
    /// Records the result of a dial for this key, which has just ended.
    pub(super) fn record<T>(&mut self, key: &PoolKey, connected: &Result<T, FailedAttempt>) {
        self.0.retain(|failed| failed.key != *key);
        if let Err(cause) = connected {
            if self.0.len() >= MAX_FAILED_DIALS {
                self.0.remove(0);
            }
            self.0.push(FailedDial {
                at: Instant::now(),
                key: key.clone(),
                cause: cause.clone(),
            });
        }
    }

    /// The cause for which a dial for this key has failed after `since`. A request that has waited for the dial fails for it, too.
    pub(super) fn cause_for(&self, key: &PoolKey, since: Instant) -> Option<&FailedAttempt> {
        self.0
            .iter()
            .find(|failed| failed.at > since && failed.key == *key)
            .map(|failed| &failed.cause)
    }
}

impl ClientLeases {
    /// Creates the empty set of leases for the client connection `id`.
    pub(super) fn new(id: Id, client: IpAddr, pool: Arc<IdlePool>) -> Self {
        Self {
            id,
            client,
            pool,
            http2: Mutex::default(),
            has_private: AtomicBool::new(false),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    /// Finds a leased HTTP/2 connection that takes another request, and was opened at this time or later.
    fn find_http2(&self, key: &PoolKey, since: Option<Instant>) -> Option<Arc<Http2Lease>> {
        let mut leases = self.http2.lock();
        leases.retain(|lease| lease.strong_count() > 0);
        leases.iter().filter_map(Weak::upgrade).find(|lease| {
            lease.return_to.key == *key
                && since.is_none_or(|since| lease.info.opened >= since)
                && lease.takes_another_request()
        })
    }

    fn add_http2(&self, lease: Http2Lease) -> Arc<Http2Lease> {
        let lease = Arc::new(lease);
        self.http2.lock().push(Arc::downgrade(&lease));
        lease
    }

    fn take_private(&self, key: &PoolKey) -> Option<Connection> {
        if !self.has_private.load(Relaxed) {
            return None;
        }
        self.pool.take(&key.private_to(self.id), self.client)
    }

    fn put_private(&self, key: &PoolKey, connection: Connection) {
        self.has_private.store(true, Relaxed);
        self.pool.put(&key.private_to(self.id), connection);
    }
}

/// Closes the private connections, which no other client connection can use.
impl Drop for ClientLeases {
    fn drop(&mut self) {
        if self.has_private.load(Relaxed) {
            self.pool.evict_private(self.id);
        }
    }
}

/// Where a connection returns to at the end of its lease.
#[derive(Debug)]
struct ReturnTo {
    key: PoolKey,
    leases: Arc<ClientLeases>,
    is_private: AtomicBool,
}

impl ReturnTo {
    fn put(&self, connection: Connection) {
        connection.info.permit.release();
        match self.is_private.load(Relaxed) {
            true => self.leases.put_private(&self.key, connection),
            false => self.leases.pool.put(&self.key, connection),
        }
    }
}

/// A leased HTTP/2 connection, which returns to the pool after its last exchange.
#[derive(Debug)]
pub(crate) struct Http2Lease {
    sender: http2::SendRequest<RequestBody>,
    limit: StreamLimit,
    info: Arc<ConnectionInfo>,
    return_to: ReturnTo,
    /// Set once the origin has refused a request on this connection, or a stream can't be reset. It takes no further requests,
    /// and is closed after those in flight.
    is_retired: AtomicBool,
}

impl Http2Lease {
    /// Whether the connection takes another request. Each request holds a reference; that of the caller counts as the new
    /// request's.
    fn takes_another_request(self: &Arc<Self>) -> bool {
        !self.is_retired.load(Relaxed)
            && !self.sender.is_closed()
            && Arc::strong_count(self) <= self.limit.max_streams()
    }
}

impl Drop for Http2Lease {
    fn drop(&mut self) {
        let connection = Connection {
            sender: Sender::Http2(self.sender.clone(), self.limit.clone()),
            info: Arc::clone(&self.info),
        };
        match self.is_retired.load(Relaxed) {
            true => connection.close(),
            false => self.return_to.put(connection),
        }
    }
}

/// The request's body of an exchange, while the connection's driver sends it.
#[derive(Debug)]
struct Upload {
    sending: Option<Sending>,
    info: Arc<ConnectionInfo>,
    /// `None` with HTTP/1. Weak: each strong reference counts as a request.
    http2: Option<Weak<Http2Lease>>,
}

/// Ends a body that is still being sent: with HTTP/1 by closing the connection, with HTTP/2 by resetting the stream. hyper does
/// not reset a stream whose body waits for the origin's window; then the connection is retired.
impl Drop for Upload {
    fn drop(&mut self) {
        let Some(mut sending) = self.sending.take() else {
            return;
        };
        if sending.has_ended() {
            return;
        }
        sending.abandon();
        let Some(lease) = self.http2.take() else {
            return self.info.permit.revoke();
        };
        // Without a runtime everything ends anyway.
        if let Some(lease) = lease.upgrade()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                if timeout(RESET_TIMEOUT, sending.wait_end()).await.is_err() {
                    lease.is_retired.store(true, Relaxed);
                }
            });
        }
    }
}

/// The use of a connection by one exchange, until the bodies of request and response have ended. Dropping it abandons the
/// request's body.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` if the request has no body. Dropped before `kind`, which it refers to.
    upload: Option<Upload>,
    kind: LeaseKind,
    info: Arc<ConnectionInfo>,
    /// Whether the connection had been used before.
    is_reused: bool,
}

#[derive(Debug)]
enum LeaseKind {
    Http1(http1::SendRequest<RequestBody>, ReturnTo),
    Http2(Arc<Http2Lease>),
}

impl Lease {
    /// Leases an open connection; `None` if there is none for this key, or the client uses its share of connections.
    pub(super) fn reuse(leases: &Arc<ClientLeases>, key: &PoolKey) -> Option<Self> {
        if let Some(connection) = leases.take_private(key) {
            let lease = Self::begin(leases, key, connection, true);
            return Some(lease.reused());
        }
        if let Some(lease) = leases.find_http2(key, None) {
            return Some(Self::share(lease));
        }
        let connection = leases.pool.take(key, leases.client)?;
        Some(Self::new(leases, key, connection).reused())
    }

    fn reused(self) -> Self {
        Self {
            is_reused: true,
            ..self
        }
    }

    /// Shares a leased HTTP/2 connection of this client that was opened at this time or later.
    pub(super) fn reuse_opened_since(
        leases: &ClientLeases,
        key: &PoolKey,
        since: Instant,
    ) -> Option<Self> {
        leases.find_http2(key, Some(since)).map(Self::share)
    }

    fn share(lease: Arc<Http2Lease>) -> Self {
        Self {
            upload: None,
            info: Arc::clone(&lease.info),
            kind: LeaseKind::Http2(lease),
            is_reused: true,
        }
    }

    /// Leases a new connection, or one of the pool.
    pub(super) fn new(leases: &Arc<ClientLeases>, key: &PoolKey, connection: Connection) -> Self {
        Self::begin(leases, key, connection, false)
    }

    fn begin(
        leases: &Arc<ClientLeases>,
        key: &PoolKey,
        connection: Connection,
        is_private: bool,
    ) -> Self {
        let Connection { sender, info } = connection;
        let return_to = ReturnTo {
            key: key.clone(),
            leases: Arc::clone(leases),
            is_private: AtomicBool::new(is_private),
        };
        let kind = match sender {
            Sender::Http1(sender) => LeaseKind::Http1(sender, return_to),
            Sender::Http2(sender, limit) => LeaseKind::Http2(leases.add_http2(Http2Lease {
                sender,
                limit,
                info: Arc::clone(&info),
                return_to,
                is_retired: AtomicBool::new(false),
            })),
        };
        Self {
            upload: None,
            kind,
            info,
            is_reused: false,
        }
    }

    /// Makes the connection private to this client connection.
    pub(super) fn make_private(&self) {
        let return_to = match &self.kind {
            LeaseKind::Http1(_, return_to) => return_to,
            LeaseKind::Http2(lease) => &lease.return_to,
        };
        return_to.is_private.store(true, Relaxed);
    }

    /// Keeps further requests off an HTTP/2 connection.
    pub(super) fn retire(&self) {
        if let LeaseKind::Http2(lease) = &self.kind {
            lease.is_retired.store(true, Relaxed);
        }
    }

    pub(super) fn info(&self) -> &Arc<ConnectionInfo> {
        &self.info
    }

    pub(super) fn is_reused(&self) -> bool {
        self.is_reused
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self.kind, LeaseKind::Http2(_))
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// # Errors
    ///
    /// hyper's error, with the request if nothing of it was sent.
    pub(super) async fn send(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        self.upload = request.body_mut().track().map(|sending| Upload {
            sending: Some(sending),
            info: Arc::clone(&self.info),
            http2: match &self.kind {
                LeaseKind::Http1(..) => None,
                LeaseKind::Http2(lease) => Some(Arc::downgrade(lease)),
            },
        });
        match &mut self.kind {
            LeaseKind::Http1(sender, ..) => sender.try_send_request(request).await,
            LeaseKind::Http2(lease) => lease.sender.clone().try_send_request(request).await,
        }
    }

    /// Whether the request's body is still being sent, after an early response.
    pub(crate) fn is_sending(&mut self) -> bool {
        self.sending().is_some_and(|sending| !sending.has_ended())
    }

    /// Waits until the request's body is no longer being sent. Cancel-safe.
    pub(crate) async fn wait_sent(&mut self) {
        if let Some(sending) = self.sending() {
            sending.wait_end().await;
        }
    }

    fn sending(&mut self) -> Option<&mut Sending> {
        self.upload.as_mut()?.sending.as_mut()
    }

    /// Returns the connection to the pool after a complete exchange. Without this call, an HTTP/1 connection is closed.
    pub(crate) fn return_to_pool(self) {
        if let LeaseKind::Http1(sender, return_to) = self.kind {
            let sender = Sender::Http1(sender);
            let info = self.info;
            return_to.put(Connection { sender, info });
        }
    }
}

/// The maximum number of keys whose last failure a client connection keeps.
const MAX_FAILED_DIALS: usize = 8;
/// How long hyper may take to reset a stream.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostPort;
    use crate::request::via::ViaLines;
    use crate::upstream::error::UpstreamError;

    fn key(is_port_named: bool) -> PoolKey {
        PoolKey {
            dialer: 0,
            generation: 0,
            to: HostPort::parse("a.test:9000").unwrap(),
            tls: true,
            http2: true,
            original_dst: None,
            is_port_named,
            announced_client: None,
            via: ViaLines::default(),
            private_to: None,
        }
    }

    /// Requests with two keys wait alternately: each gets the failure of the first dial with its key.
    #[test]
    fn failed_dial_of_another_key_is_not_forgotten() {
        let failed = || Err::<(), _>(FailedAttempt::from(UpstreamError::NoSuchName));
        let mut failures = FailedDials::default();
        let since = Instant::now() - Duration::from_secs(1);
        failures.record(&key(true), &failed());
        failures.record(&key(false), &failed());
        assert!(failures.cause_for(&key(true), since).is_some());
        assert!(failures.cause_for(&key(false), since).is_some());
        assert!(failures.cause_for(&key(true), Instant::now()).is_none());
        failures.record(&key(true), &Ok(()));
        assert!(failures.cause_for(&key(true), since).is_none());
        // The client chooses the keys.
        for dialer in 1..100 {
            let key = PoolKey {
                dialer,
                ..key(true)
            };
            failures.record(&key, &failed());
        }
        assert_eq!(failures.0.len(), MAX_FAILED_DIALS);
        let next_to_last = PoolKey {
            dialer: 98,
            ..key(true)
        };
        assert!(failures.cause_for(&next_to_last, since).is_some());
    }
}
