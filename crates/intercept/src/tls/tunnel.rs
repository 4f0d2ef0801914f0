//! A connection on its way to one place: opened and looked into, or carried as it is.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode, Version};
use peername_relay::{End, Limits, Pair, Prefix, Side, Tally, relay};
use peername_sys::tcp::stream;
use rustls::ProtocolVersion;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;

use crate::authz::authorize::{self, Asking, NO_BODY};
use crate::audit::Record;
use crate::authz::Kind;
use crate::http::client_connection::Client;
use crate::stream::corked::Corked;
use crate::tls::client_hello::{Hello, Opening, Unopened, version_name};
use crate::host::Host;
use crate::http::http_server::Inner;
use crate::ca::mint;
use crate::request::target::{Going, Named};
use crate::request::refusal::Refusal;
use crate::state::{Rules, Site};
use crate::stream::prefixed::Wire;

/// A connection that says where it goes.
pub(crate) struct Tunnel {
    pub(crate) going: Going,
    /// Of the CONNECT, or of nothing so far.
    pub(crate) record: Box<Record>,
    /// The CONNECT, if the check said no to it and the client has to be told inside.
    pub(crate) denied: Option<Arc<Parts>>,
}

impl Tunnel {
    /// Serves it to its end.
    pub(crate) async fn serve(mut self, site: &Arc<Site>, client: &Arc<Client>, mut wire: Wire) {
        let deadline = Instant::now() + site.rules.opening_timeout;
        match Opening::read(&mut wire, deadline).await {
            Err(why) => {
                self.record.unanswered(&why.refusal());
                reset(wire);
            }
            Ok(Opening::Tls(hello)) => self.tls(site, client, wire, *hello, deadline).await,
            Ok(Opening::Http) => self.http(site, client, wire).await,
            Ok(Opening::Unknown) => self.unknown(site, client, wire).await,
        }
    }

    async fn tls(
        mut self,
        site: &Arc<Site>,
        client: &Arc<Client>,
        wire: Wire,
        hello: Hello,
        deadline: Instant,
    ) {
        let mut named = Named::by_tls(&self.going, hello.sni.clone());
        named.denied = self.denied.take();
        let may_be_carried = named.barred.is_none() && named.denied.is_none();
        if may_be_carried && is_left_alone(site, client.client.ip(), &named.to.host) {
            return self.carry(site, client, wire, named).await;
        }
        let finish = finish_handshake(site, client, wire, hello, &named);
        let stream = match timeout_at(deadline, finish).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(refusal)) => return self.end(named, &refusal),
            Err(_) => return self.end(named, &Unopened::Late.refusal()),
        };
        let mut record = self.record;
        let (_, session) = stream.get_ref();
        named.tls_version = session.protocol_version().map(version_name);
        let http2 = session.alpn_protocol() == Some(b"h2");
        named.alpn = session
            .alpn_protocol()
            .map(|_| if http2 { "h2" } else { "http/1.1" });
        let inner = Inner::new(site, client, named);
        record.leave_to_inner(&inner.named);
        match http2 {
            true => inner.http2(stream).await,
            false => inner.http1(stream).await,
        }
    }

    /// HTTP without TLS. A connection that was redirected to us names its host in each request only, and
    /// that name is resolved here: whoever chose the address could have chosen any name with it.
    async fn http(mut self, site: &Arc<Site>, client: &Arc<Client>, wire: Wire) {
        let mut named = self.going.plain();
        named.denied = self.denied;
        let inner = Inner::new(site, client, named);
        self.record.leave_to_inner(&inner.named);
        match self.going {
            Going::Connect(_) => inner.http1(wire).await,
            Going::Redirected(addr) => crate::http::transparent_http::serve(site, client, wire, addr.port()).await,
        }
    }

    async fn unknown(mut self, site: &Arc<Site>, client: &Arc<Client>, wire: Wire) {
        let named = self.going.plain();
        if site.is_checked() {
            let detail = "neither TLS nor HTTP, which no check could look into";
            let code = "unknown_protocol";
            self.record.overruled();
            self.end(named, &Refusal::new(StatusCode::FORBIDDEN, code, detail));
            return reset(wire);
        }
        self.record.unchecked();
        self.carry(site, client, wire, named).await;
    }

    /// Carries it as it is, if the check agrees: it was asked about a CONNECT already.
    async fn carry(mut self, site: &Arc<Site>, client: &Arc<Client>, wire: Wire, named: Named) {
        let redirected = matches!(self.going, Going::Redirected(_));
        if redirected && let Err(refusal) = ask(site, client, &named, &mut self.record).await {
            self.end(named, &refusal);
            return reset(wire);
        }
        let named = Arc::new(named);
        self.record.named(&named);
        // Nobody verifies a certificate here, so a name is resolved by us, whatever address came with it.
        match site.upstream.tunnel(&named.to, client.client).await {
            Ok((upstream, about)) => {
                self.record.tunnelled(about);
                run(wire, upstream, site.rules.tunnel_timeout, &mut self.record).await;
            }
            Err(failed) => {
                self.record.failed(&failed);
                self.record.unanswered(&failed.into());
                reset(wire);
            }
        }
    }

    /// Nothing was passed on, and this is why.
    fn end(&mut self, named: Named, refusal: &Refusal) {
        self.record.named(&Arc::new(named));
        self.record.unanswered(refusal);
    }
}

/// As a TLS server with a certificate for the name that the client wants to see.
async fn finish_handshake(
    site: &Site,
    client: &Client,
    wire: Wire,
    hello: Hello,
    named: &Named,
) -> Result<TlsStream<Corked<TcpStream>>, Refusal> {
    // HTTP/2 unless the origin is known not to speak it and the client can do without.
    let is_http1_only = || site.upstream.is_http1_only(&named.to, named.via);
    let http2 = hello.http2 && !(hello.http1 && is_http1_only());
    let protocols: &[&[u8]] = match http2 {
        true => &[b"h2", b"http/1.1"],
        false => &[b"http/1.1"],
    };
    let (ip, host) = (client.client.ip(), &named.to.host);
    // With CONNECT it was asked for before the answer to that.
    let admitted = match named.connect {
        Some(_) => Ok(()),
        None => site.mint.admit(ip, host).await,
    };
    let config = match admitted {
        Ok(()) => site.mint.server_config(host, hello.offer, protocols).await,
        Err(error) => Err(error),
    };
    // What was ahead has been read by the acceptor.
    let (socket, _) = wire.into_parts();
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            let start = StartHandshake::from_parts(hello.accepted, socket);
            // It fails, and tells the client so.
            drop(start.into_stream(site.mint.refusing()).await);
            return Err(no_certificate(&error));
        }
    };
    let start = StartHandshake::from_parts(hello.accepted, Corked::new(socket));
    let finished = match start.into_stream(config).into_fallible().await {
        Ok(mut stream) => {
            let (socket, session) = stream.get_mut();
            // In TLS 1.2 our Finished is the last one.
            socket.over(session.protocol_version() != Some(ProtocolVersion::TLSv1_3));
            Ok(stream)
        }
        Err((error, socket)) => {
            socket.failed().await;
            Err(error)
        }
    };
    if let Some(pinned) = &site.rules.pinned {
        match &finished {
            Ok(_) => pinned.accepted(ip, &named.to.host),
            Err(error) if pinned.failed(ip, &named.to.host, error) => {
                tracing::info!(client = %ip, host = %named.host, "does not trust us: not opened for a day");
            }
            Err(_) => {}
        }
    }
    finished.map_err(|error| {
        let detail = format!("the client's TLS handshake failed: {error}");
        Refusal::new(StatusCode::BAD_REQUEST, "client_tls", detail)
            .hint("does the client trust the proxy's authority (`peername ca env`)?")
    })
}

pub(crate) fn no_certificate(error: &mint::Error) -> Refusal {
    let (status, code) = match error {
        mint::Error::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too_many_certificates"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "no_certificate"),
    };
    Refusal::new(status, code, error.to_string())
}

pub(crate) fn is_left_alone(site: &Site, ip: IpAddr, host: &Host) -> bool {
    let Rules {
        passthrough,
        pinned,
        ..
    } = &site.rules;
    passthrough.includes(host)
        || pinned
            .as_ref()
            .is_some_and(|pinned| pinned.includes(ip, host))
}

/// Whether a connection may be carried that was redirected to us. There is no request to ask about, so
/// it is asked about as the CONNECT that it stands for.
async fn ask(
    site: &Site,
    client: &Client,
    named: &Named,
    record: &mut Record,
) -> Result<(), Refusal> {
    let connect = authorize::connect(Version::HTTP_11, HeaderMap::new());
    let asking = Asking {
        site,
        client,
        named,
    };
    let asked = asking.ask(Kind::Connect, &connect, NO_BODY, record).await;
    asked.map(drop).map_err(|denied| Refusal::denied(&denied))
}

/// Carries bytes both ways, those that were read already first.
async fn run(wire: Wire, upstream: TcpStream, silence: Duration, record: &mut Record) {
    let (downstream, ahead) = wire.into_parts();
    let mut tally = Tally::default();
    let pair = Pair {
        downstream,
        upstream,
    };
    let ahead = Prefix {
        bytes: ahead.into(),
        sent: 0,
        has_more: false,
    };
    let limits = Limits {
        idle: Some(silence),
        half_closed: silence,
        ..Limits::default()
    };
    let end = relay(
        pair,
        ahead,
        peername_relay::Method::Auto,
        limits,
        &mut tally,
    )
    .await;
    record.sent.octets.store(tally.to_upstream, Relaxed);
    record.received.store(tally.to_downstream, Relaxed);
    match end {
        End::Finished(_) => record.complete(),
        End::Idle => record.idle(),
        End::Reset(Side::Upstream) => record.cut_by_origin(),
        End::Reset(Side::Downstream) | End::Lost => {}
    }
}

/// RST, so that the client does not take the end of the connection for the end of an answer.
fn reset(wire: Wire) {
    let (socket, _) = wire.into_parts();
    let _ = stream::reset_on_close(&socket);
}
