//! Connections to origins, kept for the next request to the same place.
//!
//! One pool a worker, so that nothing crosses threads. What may be shared is decided by the [`Key`]:
//! whatever makes a difference to the origin stands in it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};

use crate::body::Outgoing;
use crate::host::HostPort;

/// What a connection is good for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) to: HostPort,
    pub(crate) tls: bool,
    /// Whether HTTP/2 is offered.
    pub(crate) http2: bool,
    /// The address that the client was going to, where it chose one.
    pub(crate) via: Option<IpAddr>,
    /// Whom a PROXY header speaks for. Two clients then never share a connection.
    pub(crate) speaks_for: Option<SocketAddr>,
}

/// A connection to an origin.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) sender: Sender,
    pub(crate) about: Arc<About>,
}

#[derive(Debug)]
pub(crate) enum Sender {
    Http1(http1::SendRequest<Outgoing>),
    Http2(http2::SendRequest<Outgoing>),
}

/// What the audit line tells of a connection.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) addr: SocketAddr,
    /// The protocol version, where it is TLS.
    pub(crate) tls: Option<&'static str>,
    /// Whether requests have to be in absolute form, because an upstream proxy is at the other end.
    pub(crate) absolute_form: bool,
}

/// Idle connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<HashMap<Key, Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The one used last is the one used next: the others may then grow old.
    http1: Vec<(Instant, Connection)>,
    http2: Option<(Instant, http2::SendRequest<Outgoing>, Arc<About>)>,
}

impl Pool {
    /// One that can take a request now.
    pub(crate) fn take(&self, key: &Key) -> Option<Connection> {
        let mut all = self.lock();
        let kept = all.get_mut(key)?;
        if let Some((last, sender, about)) = &mut kept.http2 {
            if sender.is_ready() && !sender.is_closed() {
                *last = Instant::now();
                return Some(Connection {
                    sender: Sender::Http2(sender.clone()),
                    about: Arc::clone(about),
                });
            }
            kept.http2 = None;
        }
        kept.http1.retain(|(_, connection)| !connection.is_closed());
        // One whose task has not seen the end of the last exchange yet is left for later.
        let ready = kept.http1.iter().rposition(|(_, one)| one.is_ready());
        let taken = ready.map(|at| kept.http1.remove(at).1);
        if kept.is_empty() {
            all.remove(key);
        }
        taken
    }

    /// Keeps one whose exchange is over. HTTP/2 is kept from its first use on: it can be shared.
    pub(crate) fn keep(&self, key: &Key, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut all = self.lock();
        let kept = all.entry(key.clone()).or_default();
        match connection.sender {
            Sender::Http2(sender) => kept.http2 = Some((now, sender, connection.about)),
            Sender::Http1(_) if kept.http1.len() < MOST_IDLE => kept.http1.push((now, connection)),
            Sender::Http1(_) => {}
        }
    }

    /// Closes what nobody has used for so long.
    pub(crate) fn forget_unused(&self, since: Duration) {
        let now = Instant::now();
        let is_fresh = |last: Instant| now.duration_since(last) < since;
        self.lock().retain(|_, kept| {
            kept.http1
                .retain(|(last, one)| is_fresh(*last) && !one.is_closed());
            let old = |(last, sender, _): &(Instant, http2::SendRequest<_>, _)| {
                sender.is_closed() || !is_fresh(*last)
            };
            if kept.http2.as_ref().is_some_and(old) {
                kept.http2 = None;
            }
            !kept.is_empty()
        });
    }

    /// Closes all that is idle.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.http1.is_empty() && self.http2.is_none()
    }
}

impl Connection {
    fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }

    fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }
}

/// Of one origin. A crowd that has left leaves no more than this behind.
const MOST_IDLE: usize = 256;
