//! A new connection to an origin: resolved, admitted, connected, announced, encrypted.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use peername_proto::{Transport, V2Writer, kind};
use peername_sys::tcp::stream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::connection::{About, Connection, Limit, Sender, Stream};
use super::connection_cap::Place;
use super::idle_pool::Key;
use super::trust::verifier::BadCertificate;
use super::{Failed, Fault, Upstream};
use crate::stream::corked::Corked;
use crate::host::HostPort;

impl Upstream {
    /// Connects, ready for a request.
    pub(super) async fn connect(&self, key: &Key, client: IpAddr) -> Result<Connection, Failed> {
        let place = self.places.take()?;
        let (socket, addr) = self.way(key, client).await?;
        let opened = self.open(key, socket, addr, place).await;
        opened.map_err(|fault| fault.with(addr))
    }

    /// A socket on which the origin is, or the parent that passes on what is said to it.
    async fn way(&self, key: &Key, client: IpAddr) -> Result<(TcpStream, SocketAddr), Failed> {
        let Some(parent) = &self.settings.parent else {
            return self.reach(&key.to, key.via, client).await;
        };
        self.admit_unresolved(&key.to)?;
        let (socket, addr) = self.reach_parent(parent, client).await?;
        if !key.tls {
            return Ok((socket, addr));
        }
        let tunnel = parent.tunnel(socket, &key.to).await;
        tunnel
            .map(|socket| (socket, addr))
            .map_err(|fault| fault.with(addr))
    }

    async fn open(
        &self,
        key: &Key,
        mut socket: TcpStream,
        addr: SocketAddr,
        place: Place,
    ) -> Result<Connection, Fault> {
        if let Some(client) = key.speaks_for {
            announce(&mut socket, client, addr, key).await?;
        }
        let absolute_form = !key.tls && self.settings.parent.is_some();
        let about = |tls| {
            Arc::new(About {
                addr,
                tls,
                absolute_form,
                _place: place,
            })
        };
        if !key.tls {
            return http1(socket, about(None)).await;
        }
        let (config, limit) = (self.config(key), self.settings.handshake_timeout);
        let name = key.to.host.to_server_name();
        let connector = TlsConnector::from(config);
        let connecting = connector.connect(name, Corked::new(socket)).into_fallible();
        let stream = match timeout(limit, connecting).await {
            Ok(Ok(mut stream)) => {
                // The request goes with it, and the origin waits for that.
                stream.get_mut().0.over(false);
                stream
            }
            Ok(Err((error, socket))) => {
                socket.failed().await;
                return Err(of_tls(&error));
            }
            Err(_) => return Err(Fault::HandshakeTimeout(limit)),
        };
        let (_, session) = stream.get_ref();
        let version = session.protocol_version().map(crate::tls::client_hello::version_name);
        match session.alpn_protocol() {
            Some(b"h2") => http2(stream, about(version)).await,
            _ => http1(stream, about(version)).await,
        }
    }

    /// A raw connection to where a tunnel goes.
    pub(crate) async fn tunnel(
        &self,
        to: &HostPort,
        client: SocketAddr,
    ) -> Result<(TcpStream, Arc<About>), Failed> {
        let place = self.places.take()?;
        let key = self.key(to.clone(), true, false, None, client);
        let (mut socket, addr) = self.way(&key, client.ip()).await?;
        if let Some(client) = key.speaks_for {
            let announced = announce(&mut socket, client, addr, &key).await;
            announced.map_err(|fault| fault.with(addr))?;
        }
        let about = About {
            addr,
            tls: None,
            absolute_form: false,
            _place: place,
        };
        Ok((socket, Arc::new(about)))
    }

    fn config(&self, key: &Key) -> Arc<rustls::ClientConfig> {
        let tls = self.tls.load();
        Arc::clone(match key.http2 {
            true => &tls.both,
            false => &tls.http1,
        })
    }

    async fn reach(
        &self,
        to: &HostPort,
        via: Option<IpAddr>,
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), Failed> {
        let limit = self.settings.connect_timeout;
        let found = match via.or_else(|| to.host.as_ip()) {
            Some(ip) => vec![ip],
            None => self.lookups.addresses(&to.host, client, limit).await?,
        };
        let mut refused = None;
        let mut admitted = Vec::new();
        for ip in found {
            let addr = SocketAddr::new(ip, to.port);
            match self.destinations.admit(addr) {
                Ok(()) => admitted.push(addr),
                Err(why) => refused = Some(Fault::Destination(addr, why)),
            }
        }
        match (admitted.as_slice(), refused) {
            ([], Some(refused)) => Err(refused.into()),
            (admitted, _) => Ok(self.first_of(admitted).await?),
        }
    }

    /// The operator named it, so no destination rule applies to it.
    async fn reach_parent(
        &self,
        parent: &super::Parent,
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), Failed> {
        let (at, limit) = (parent.at(), self.settings.connect_timeout);
        let found = match at.host.as_ip() {
            Some(ip) => vec![ip],
            None => {
                let found = self.lookups.addresses(&at.host, client, limit).await;
                found.map_err(|fault| in_parent(&fault))?
            }
        };
        let all: Vec<_> = found
            .into_iter()
            .map(|ip| SocketAddr::new(ip, at.port))
            .collect();
        self.first_of(&all).await.map_err(|fault| Failed {
            fault: in_parent(&fault),
            ..fault.into()
        })
    }

    /// The parent resolves names; what is an address already is decided on here.
    fn admit_unresolved(&self, to: &HostPort) -> Result<(), Fault> {
        let Some(ip) = to.host.as_ip() else {
            return Ok(());
        };
        let addr = SocketAddr::new(ip, to.port);
        let admitted = self.destinations.admit(addr);
        admitted.map_err(|why| Fault::Destination(addr, why))
    }

    /// One after the other, in the resolver's order (RFC 6724), each with its part of the time.
    async fn first_of(&self, all: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Fault> {
        let all = all.get(..MOST_TRIED).unwrap_or(all);
        let parts = u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
        let limit = self.settings.connect_timeout;
        let each = (limit / parts).max(SHORTEST_TRY.min(limit));
        let mut last = Fault::NoSuchName;
        for &addr in all {
            match timeout(each, TcpStream::connect(addr)).await {
                Err(_) => last = Fault::ConnectTimeout(addr, each),
                Ok(Err(error)) => last = Fault::connect(addr, &error),
                Ok(Ok(socket)) => {
                    // A connection without them is slower, but a connection.
                    let _ = stream::tune_for_peer(&socket, addr.ip());
                    return Ok((socket, addr));
                }
            }
        }
        Err(last)
    }
}

/// A PROXY header of version 2 (PROXY protocol, section 2.2) with the name that is asked for.
async fn announce(
    socket: &mut TcpStream,
    client: SocketAddr,
    to: SocketAddr,
    key: &Key,
) -> Result<(), Fault> {
    let mut header = Vec::new();
    let host = key.to.host.to_string();
    let written = V2Writer::proxy(&mut header, Transport::Stream, client, to)
        .tlv(kind::AUTHORITY, host.as_bytes())
        .finish();
    written.map_err(|error| Fault::Handshake(error.to_string()))?;
    let sent = socket.write_all(&header).await;
    sent.map_err(|error| Fault::connect(to, &error))
}

async fn http1<T>(io: T, about: Arc<About>) -> Result<Connection, Fault>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http1::Builder::new()
        .max_header_size(MAX_HEADER)
        .handshake(TokioIo::new(io))
        .await;
    let (sender, driver) = handshake.map_err(|error| Fault::BadAnswer(error.to_string()))?;
    // Its errors reach whoever waits for an answer. An async block would have room for it twice, before it is awaited
    // and while it is.
    let has_its_place = Arc::clone(&about);
    let mut driver = driver.with_upgrades();
    tokio::spawn(poll_fn(move |cx| {
        let _has_its_place = &has_its_place;
        Pin::new(&mut driver).poll(cx).map(drop)
    }));
    Ok(Connection {
        sender: Sender::Http1(sender),
        about,
    })
}

async fn http2(io: Stream, about: Arc<About>) -> Result<Connection, Fault> {
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .max_header_list_size(MAX_HEADER as u32)
        .handshake(TokioIo::new(io))
        .await;
    let (sender, driver) = handshake.map_err(|error| Fault::BadAnswer(error.to_string()))?;
    Ok(Connection {
        sender: Sender::Http2(sender, Limit::drive(driver, Arc::clone(&about))),
        about,
    })
}

fn in_parent(fault: &Fault) -> Fault {
    Fault::Parent(fault.to_string())
}

fn of_tls(error: &std::io::Error) -> Fault {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner.and_then(BadCertificate::of) {
        Some(bad) => Fault::Certificate(bad),
        None => Fault::Handshake(error.to_string()),
    }
}

/// More addresses than this are not tried for one request.
const MOST_TRIED: usize = 6;
const SHORTEST_TRY: Duration = Duration::from_secs(2);
/// Of an answer.
const MAX_HEADER: usize = 128 * 1024;
/// Finds out that a shared connection is dead before many requests have waited for it.
const PING: Duration = Duration::from_secs(20);
