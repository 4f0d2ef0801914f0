//! The connections to origins that one client has for itself, for as long as it uses them.
//!
//! HTTP/2 would let many clients share a connection. But then one of them that keeps its streams open leaves no
//! room for the others, and one that does not read its answers fills the window of the whole connection (RFC 9113,
//! section 5.2.1). So a connection in use is one client's alone; idle, it is anybody's.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};

use super::Fault;
use super::connection::{About, Connection, Limit, Sender};
use super::pool::{Key, Pool};
use crate::body::Outgoing;

/// What one client connection has towards origins.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Those by HTTP/2, which take more than one request at a time.
    shared: Mutex<Vec<Weak<Shared>>>,
    /// Whose turn it is to dial, and what became of the last attempt if it failed.
    pub(super) dialling: tokio::sync::Mutex<Option<(Instant, Fault)>>,
}

impl Own {
    /// One that is in use and takes a request more.
    fn in_use(&self, key: &Key) -> Option<Arc<Shared>> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        let mut all = all.iter().filter_map(Weak::upgrade);
        // This look at it counts as the use that may come of it.
        all.find(|one| {
            one.key == *key
                && !one.sender.is_closed()
                && Arc::strong_count(one) <= one.limit.streams()
        })
    }

    fn begin(&self, shared: Shared) -> Arc<Shared> {
        let shared = Arc::new(shared);
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(&shared));
        shared
    }
}

/// A connection by HTTP/2 in use. After its last exchange it goes back to the pool.
#[derive(Debug)]
pub(crate) struct Shared {
    sender: http2::SendRequest<Outgoing>,
    limit: Limit,
    about: Arc<About>,
    key: Key,
    pool: Arc<Pool>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let connection = Connection {
            sender: Sender::Http2(self.sender.clone(), self.limit.clone()),
            about: Arc::clone(&self.about),
        };
        self.pool.keep(&self.key, connection);
    }
}

/// The use of a connection, until the answer's body is over.
#[derive(Debug)]
pub(crate) struct Lease {
    of: Of,
    about: Arc<About>,
}

#[derive(Debug)]
enum Of {
    Http1(http1::SendRequest<Outgoing>, Key, Arc<Pool>),
    Http2(Arc<Shared>),
}

impl Lease {
    /// Of a connection that is there already.
    pub(super) fn again(own: &Own, key: &Key, pool: &Arc<Pool>) -> Option<Self> {
        if let Some(shared) = own.in_use(key) {
            let about = Arc::clone(&shared.about);
            return Some(Self {
                of: Of::Http2(shared),
                about,
            });
        }
        let connection = pool.take(key)?;
        Some(Self::first(own, key, pool, connection))
    }

    /// Of one that nobody uses.
    pub(super) fn first(own: &Own, key: &Key, pool: &Arc<Pool>, connection: Connection) -> Self {
        let Connection { sender, about } = connection;
        let (key, pool) = (key.clone(), Arc::clone(pool));
        let of = match sender {
            Sender::Http1(sender) => Of::Http1(sender, key, pool),
            Sender::Http2(sender, limit) => Of::Http2(own.begin(Shared {
                sender,
                limit,
                about: Arc::clone(&about),
                key,
                pool,
            })),
        };
        Self { of, about }
    }

    pub(super) fn about(&self) -> &Arc<About> {
        &self.about
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self.of, Of::Http2(_))
    }

    /// Sends a request and waits for the head of its answer. An error gives back what was not sent.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Outgoing>>> {
        match &mut self.of {
            Of::Http1(sender, ..) => sender.try_send_request(request).await,
            Of::Http2(shared) => shared.sender.clone().try_send_request(request).await,
        }
    }

    /// The exchange is over and the connection as good as new. Without this, one by HTTP/1 is closed.
    pub(crate) fn give_back(self) {
        if let Of::Http1(sender, key, pool) = self.of {
            let sender = Sender::Http1(sender);
            let about = self.about;
            pool.keep(&key, Connection { sender, about });
        }
    }
}
