//! A listener that was closed except for its accept backlog: closing the socket would reset the connections in it.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use peername_sys::tcp::listener;
use peername_sys::{is_broken_listener, is_per_connection_error};

use super::connection_limit::{ConnectionLimit, ConnectionPermit};
use crate::listeners::Listener;

/// A closed listener with connections in its backlog. It keeps the context to serve them with, because a reload may have
/// removed the listener from the service.
pub(crate) struct DrainingListener<C> {
    listener: Listener,
    context: C,
    /// The number of connections of the backlog that are still to be served. Later connections would keep the socket open
    /// for as long as they keep coming.
    remaining: usize,
    /// Counts closed listening sockets: one more when this value is dropped.
    closed: Arc<AtomicUsize>,
}

/// The state of a backlog after it was served.
pub(crate) enum Backlog {
    /// All connections were served.
    Empty,
    /// The next connection waits for a permit.
    NeedsPermit,
    /// accept(2) failed with an error that may be temporary: descriptors or memory have run out.
    Stuck(io::Error),
}

impl<C: Clone> DrainingListener<C> {
    pub(crate) fn new(listener: Listener, context: C, closed: &Arc<AtomicUsize>) -> Self {
        Self {
            listener,
            context,
            remaining: usize::MAX,
            closed: Arc::clone(closed),
        }
    }

    /// Whether another process holds the socket, too, and serves the backlog.
    pub(crate) fn is_shared(&self) -> bool {
        self.listener.is_shared
    }

    /// Limits the connections that are served to those in the backlog now; `false` if there are none.
    pub(crate) fn limit_to_backlog(&mut self) -> bool {
        // An error is ignored: it only lets more connections into the backlog than necessary.
        let socket = &self.listener.socket;
        let _ = listener::shrink_backlog(socket);
        self.remaining = listener::accept_queue_len(socket).unwrap_or(usize::MAX);
        self.remaining > 0
    }

    /// Accepts from the backlog as far as there are permits, of which `next_permit` is the first.
    pub(crate) fn serve(
        &mut self,
        mut next_permit: Option<ConnectionPermit>,
        limit: &ConnectionLimit,
        dispatch: impl Fn(&Listener, (TcpStream, SocketAddr), ConnectionPermit, C),
    ) -> Backlog {
        while self.remaining > 0 {
            let Some(permit) = next_permit else {
                return Backlog::NeedsPermit;
            };
            match listener::accept(&self.listener.socket) {
                Ok(accepted) => {
                    dispatch(&self.listener, accepted, permit, self.context.clone());
                }
                Err(error) if is_per_connection_error(&error) => {}
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock || is_broken_listener(&error) =>
                {
                    return Backlog::Empty;
                }
                Err(error) => return Backlog::Stuck(error),
            }
            self.remaining -= 1;
            next_permit = limit.try_acquire();
        }
        Backlog::Empty
    }
}

impl<C> Drop for DrainingListener<C> {
    fn drop(&mut self) {
        self.closed.fetch_add(1, Relaxed);
    }
}
