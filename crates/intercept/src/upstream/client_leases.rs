//! The connections to origins that one client has for itself, for as long as it uses them.
//!
//! HTTP/2 would let many clients share a connection. But then one of them that keeps its streams open leaves no
//! room for the others, and one that does not read its answers fills the window of the whole connection (RFC 9113,
//! section 5.2.1). So a connection in use is one client's alone; idle, it is anybody's.
//!
//! Idle or not, it stays the client's where NTLM or Negotiate may have made it one user's: these authenticate a
//! connection rather than a request (RFC 4559, section 6). Idle, it is in the pool like any other, so that it grows old
//! and makes room for others, but under a key that no other client connection has.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::time::Instant;

use super::Failed;
use super::connection::{About, Connection, Limit, Sender};
use super::idle_pool::{Key, Pool};
use crate::http::response_body::Outgoing;
use crate::request::id::Id;

/// What one client connection has towards origins.
#[derive(Debug)]
pub(crate) struct Own {
    id: Id,
    pub(super) client: IpAddr,
    /// Where those go that it does not use.
    pool: Arc<Pool>,
    /// Those by HTTP/2, which take more than one request at a time.
    shared: Mutex<Vec<Weak<Shared>>>,
    /// Whether there may be some in the pool that nobody else may have.
    has_private: AtomicBool,
    /// Whose turn it is to dial, and what became of the last attempt if it failed.
    pub(super) dialling: tokio::sync::Mutex<Option<(Instant, Failed)>>,
}

impl Own {
    /// Nothing so far, for the client connection `id`.
    pub(super) fn of(id: Id, client: IpAddr, pool: Arc<Pool>) -> Self {
        Self {
            id,
            client,
            pool,
            shared: Mutex::default(),
            has_private: AtomicBool::new(false),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    /// One that is in use and takes a request more.
    fn in_use(&self, key: &Key) -> Option<Arc<Shared>> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        let mut all = all.iter().filter_map(Weak::upgrade);
        // This look at it counts as the use that may come of it.
        all.find(|one| {
            one.home.key == *key
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

    fn take_private(&self, key: &Key) -> Option<Connection> {
        let has_private = self.has_private.load(Relaxed);
        has_private.then(|| self.pool.take(&key.private_to(self.id)))?
    }

    fn keep_private(&self, key: &Key, connection: Connection) {
        self.has_private.store(true, Relaxed);
        self.pool.keep(&key.private_to(self.id), connection);
    }
}

/// Nobody else can use what is private.
impl Drop for Own {
    fn drop(&mut self) {
        if self.has_private.load(Relaxed) {
            self.pool.close_private(self.id);
        }
    }
}

/// Where a connection goes once nobody uses it.
#[derive(Debug)]
struct Home {
    key: Key,
    own: Arc<Own>,
    is_private: AtomicBool,
}

impl Home {
    fn keep(&self, connection: Connection) {
        match self.is_private.load(Relaxed) {
            true => self.own.keep_private(&self.key, connection),
            false => self.own.pool.keep(&self.key, connection),
        }
    }
}

/// A connection by HTTP/2 in use. After its last exchange it goes home.
#[derive(Debug)]
pub(crate) struct Shared {
    sender: http2::SendRequest<Outgoing>,
    limit: Limit,
    about: Arc<About>,
    home: Home,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let connection = Connection {
            sender: Sender::Http2(self.sender.clone(), self.limit.clone()),
            about: Arc::clone(&self.about),
        };
        self.home.keep(connection);
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
    Http1(http1::SendRequest<Outgoing>, Home),
    Http2(Arc<Shared>),
}

impl Lease {
    /// Of a connection that is there already.
    pub(super) fn again(own: &Arc<Own>, key: &Key) -> Option<Self> {
        if let Some(connection) = own.take_private(key) {
            return Some(Self::begin(own, key, connection, true));
        }
        if let Some(shared) = own.in_use(key) {
            let about = Arc::clone(&shared.about);
            let of = Of::Http2(shared);
            return Some(Self { of, about });
        }
        let connection = own.pool.take(key)?;
        Some(Self::first(own, key, connection))
    }

    /// Of one that nobody uses.
    pub(super) fn first(own: &Arc<Own>, key: &Key, connection: Connection) -> Self {
        Self::begin(own, key, connection, false)
    }

    fn begin(own: &Arc<Own>, key: &Key, connection: Connection, is_private: bool) -> Self {
        let Connection { sender, about } = connection;
        let home = Home {
            key: key.clone(),
            own: Arc::clone(own),
            is_private: AtomicBool::new(is_private),
        };
        let of = match sender {
            Sender::Http1(sender) => Of::Http1(sender, home),
            Sender::Http2(sender, limit) => Of::Http2(own.begin(Shared {
                sender,
                limit,
                about: Arc::clone(&about),
                home,
            })),
        };
        Self { of, about }
    }

    /// From now on the connection is this client's and nobody else's.
    pub(super) fn make_private(&self) {
        let home = match &self.of {
            Of::Http1(_, home) => home,
            Of::Http2(shared) => &shared.home,
        };
        home.is_private.store(true, Relaxed);
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
        if let Of::Http1(sender, home) = self.of {
            let sender = Sender::Http1(sender);
            let about = self.about;
            home.keep(Connection { sender, about });
        }
    }
}
