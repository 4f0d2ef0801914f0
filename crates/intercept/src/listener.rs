//! Where connections come in.

mod connect_proxy;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peername_observe::throttle::Throttle;
use peername_server::addr::PeerAddr;
use peername_server::header_limits::HeaderLimits;
use peername_server::header_reader;
use peername_server::listeners::ListenerId;
use peername_server::workers::{Incoming, Serve, WorkerTask};
use peername_sys::event::readiness::register_stream;
use peername_sys::tcp::original_destination;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::audit::Record;
use crate::http::client_connection::Client;
use crate::http::stall_monitor::Exchanges;
use crate::listener::connect_proxy;
use crate::request::id::Id;
use crate::request::target::Going;
use crate::state::Site;
use crate::tls::tunnel::Tunnel;
use crate::upstream::Upstream;
use crate::stream::prefixed::Wire;

/// What is expected of whoever comes in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Clients that know of the proxy.
    Explicit,
    /// Connections that were going somewhere else, by a REDIRECT or a TPROXY rule.
    Transparent,
}

/// Serves what comes in at all doors.
#[derive(Debug)]
pub struct Intercept {
    site: Arc<Site>,
    doors: HashMap<ListenerId, Door>,
}

impl Intercept {
    /// Each listener is a door; one that is none of these is an explicit one.
    pub fn new(site: Arc<Site>, doors: impl IntoIterator<Item = (ListenerId, Door)>) -> Self {
        let doors = doors.into_iter().collect();
        Self { site, doors }
    }

    /// What each worker does beside its connections.
    pub fn worker_tasks(&self, workers: usize) -> Vec<WorkerTask> {
        let companion = |_| -> WorkerTask {
            let site = Arc::clone(&self.site);
            Box::new(move |mut phases| {
                Box::pin(async move {
                    tokio::select! {
                        () = phases.wait_draining() => {}
                        () = site.upstream.sweep() => {}
                    }
                    site.drain();
                    Upstream::close_idle();
                    io::Result::Ok(())
                })
            })
        };
        (0..workers).map(companion).collect()
    }

    async fn admit(&self, stream: TcpStream, incoming: Arrived, door: Door) {
        let Arrived { peer, listener } = incoming;
        let mut client = peer.0;
        let limits = HeaderLimits::default();
        let access = self.site.access();
        if access.expects_header(peer.ip()) {
            let deadline = Instant::now() + self.site.rules.opening_timeout;
            let header = header_reader::read_claim(&stream, &limits);
            match timeout_at(deadline, header).await {
                Ok(Ok(claimed)) => client = claimed.map_or(client, |claimed| claimed.0),
                Ok(Err(_)) | Err(_) => {
                    self.site.unopened(peer, "proxy_header");
                    if let Some(suppressed) = NO_HEADER.pass() {
                        tracing::warn!(
                            suppressed,
                            "connections refused, such as of {}: no valid PROXY header in time, which \
                             --accept-proxy expects",
                            peer.ip()
                        );
                    }
                    let _ = peername_sys::tcp::stream::reset_on_close(&stream);
                    return;
                }
            }
        }
        if !access.admits(client.ip()) {
            self.site.unopened(peer, "client_not_allowed");
            if let Some(suppressed) = NOT_ALLOWED.pass() {
                let client = client.ip();
                tracing::warn!(
                    suppressed,
                    "connections refused, such as of {client}: not a network of --allow-client"
                );
            }
            let _ = peername_sys::tcp::stream::reset_on_close(&stream);
            return;
        }
        drop(access);
        let Some(_place) = self.site.shares.enter(client.ip()) else {
            self.site.unopened(peer, "too_many_connections");
            if let Some(suppressed) = TOO_MANY.pass() {
                let client = client.ip();
                tracing::warn!(
                    suppressed,
                    "connections refused, such as of {client}: it has more than twice as many as are free; raise \
                     LimitNOFILE or `ulimit -n` if this is the normal load"
                );
            }
            let _ = peername_sys::tcp::stream::reset_on_close(&stream);
            return;
        };
        let id = Id::next();
        let client = Arc::new(Client {
            id,
            peer,
            client,
            listener,
            exchanges: Exchanges::default(),
            own: Upstream::own(id, client.ip()),
            user: Mutex::default(),
        });
        match door {
            Door::Explicit => connect_proxy::serve(&self.site, client, stream).await,
            Door::Transparent => self.redirected(stream, client).await,
        }
    }

    async fn redirected(&self, stream: TcpStream, client: Arc<Client>) {
        let original = original_destination(&stream, client.listener.0.is_ipv6());
        // TPROXY leaves the address as it was; and whoever comes to the listener itself is told that this
        // leads nowhere, as any destination of ours.
        let going = match (original, stream.local_addr()) {
            (Ok(Some(addr)), _) | (_, Ok(addr)) => canonical(addr),
            (_, Err(_)) => return self.site.unopened(client.peer, "closed"),
        };
        let tunnel = Tunnel {
            going: Going::Redirected(going),
            record: Record::begin(&self.site.metrics, &client, "CONNECT"),
            denied: None,
        };
        tunnel
            .serve(&self.site, &client, Wire::new(stream, Vec::new()))
            .await;
    }
}

/// Who came, and where.
struct Arrived {
    peer: PeerAddr,
    listener: peername_server::addr::LocalAddr,
}

impl Serve for Intercept {
    type Context = Door;

    fn context(&self, listener: ListenerId) -> Door {
        self.doors.get(&listener).copied().unwrap_or(Door::Explicit)
    }

    async fn serve(self: Arc<Self>, connection: Incoming, door: Door) {
        let Incoming {
            stream,
            peer,
            listener,
        } = connection;
        let peer = PeerAddr(canonical(peer.0));
        self.site.metrics.connections.inc();
        let stream = match register_stream(stream) {
            Ok(stream) => stream,
            Err(failed) => {
                self.site.unopened(peer, "local_error");
                if let Some(suppressed) = UNWATCHED.pass() {
                    tracing::warn!(
                        suppressed,
                        "connections closed, such as of {peer}: {failed}"
                    );
                }
                return;
            }
        };
        self.site.metrics.active.inc();
        let active = Active(&self.site);
        // What a connection needs is large, and most of it only while it lasts.
        Box::pin(self.admit(stream, Arrived { peer, listener }, door)).await;
        drop(active);
    }
}

static NO_HEADER: Throttle = Throttle::new(Duration::from_secs(10));
static TOO_MANY: Throttle = Throttle::new(Duration::from_secs(10));
static NOT_ALLOWED: Throttle = Throttle::new(Duration::from_secs(10));
static UNWATCHED: Throttle = Throttle::new(Duration::from_secs(10));

struct Active<'a>(&'a Site);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.metrics.active.dec();
    }
}

/// One form for one address.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
