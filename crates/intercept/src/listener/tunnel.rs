//! A connection with one destination: its TLS is terminated and its HTTP served, or its bytes are relayed as they are.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode, Version};
use peername_relay::{End, Limits, Pair, Prefix, Side, relay};
use rustls::{ProtocolVersion, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;

use super::client_hello::{Opening, OpeningError, ParsedClientHello};
use crate::audit::{ExchangeEnd, FinalDecision, tls_version};
use crate::authz::authorize::{Denied, connect_head};
use crate::authz::{AllowedTunnel, HTTP_PORTS, rule_with_port};
use crate::ca::mint::client_support::ClientSupport;
use crate::ca::mint::error::MintError;
use crate::http::http_server::{HttpServer, ServedTarget};
use crate::http::in_flight::InFlightRecord;
use crate::request::client_info::ClientInfo;
use crate::request::refusal::{Refusal, RefusalKind};
use crate::request::remedy::Remedy;
use crate::request::target::{Destination, RequestTarget};
use crate::state::InterceptState;
use crate::stream::client_socket::{ClientSocket, ClientStream};
use crate::stream::corked::CorkedStream;
use crate::upstream::OpenTunnel;

/// A connection whose destination is known.
pub(crate) struct Tunnel {
    pub(crate) destination: Destination,
    /// The record of the CONNECT, or of a redirected connection.
    pub(crate) record: Box<InFlightRecord>,
    pub(crate) check: TunnelCheck,
}

/// The decision on a tunnel before its first bytes are read.
#[derive(Default)]
pub(crate) enum TunnelCheck {
    /// No decision yet: a redirected or jailed connection has no CONNECT to decide on.
    #[default]
    Pending,
    Allowed(AllowedTunnel),
    /// This CONNECT was denied, and the client has to be told inside the tunnel.
    Denied(Arc<Parts>),
}

impl TunnelCheck {
    fn denied_connect(&self) -> Option<Arc<Parts>> {
        match self {
            Self::Denied(connect) => Some(Arc::clone(connect)),
            Self::Pending | Self::Allowed(_) => None,
        }
    }
}

impl Tunnel {
    /// Serves the connection to its end.
    pub(crate) async fn serve(self, state: &Arc<InterceptState>, mut stream: ClientStream) {
        let deadline = Instant::now() + state.config.opening_timeout;
        self.record.connection().set_opening(true);
        let opening = Opening::read(&mut stream, deadline).await;
        self.serve_opening(state, stream, opening, deadline).await;
    }

    /// Serves a connection to its end, after its first bytes were read.
    pub(crate) async fn serve_opening(
        mut self,
        state: &Arc<InterceptState>,
        stream: ClientStream,
        opening: Result<Opening, OpeningError>,
        deadline: Instant,
    ) {
        match opening {
            Err(error) => {
                // A client that closed before its ClientHello was complete has asked for nothing.
                if matches!(error, OpeningError::NotAClientHello(_) | OpeningError::Late) {
                    self.record.set_target(&self.destination.to_target().into());
                }
                self.record.set_unanswered(&error.to_refusal());
                reset(stream);
            }
            Ok(Opening::Tls(hello)) => {
                self.serve_tls(state, stream, *hello, deadline).await;
            }
            Ok(Opening::Http) => self.serve_http(state, stream).await,
            Ok(Opening::Unknown) => self.serve_unknown(state, stream).await,
        }
    }

    /// Relays the connection to its end without reading first, for protocols in which the server may be the first to send.
    pub(crate) async fn serve_unread(self, state: &Arc<InterceptState>, stream: ClientStream) {
        let target = self.destination.to_target();
        self.relay_unopened(state, stream, target).await;
    }

    /// Resets the connection, and records why.
    pub(crate) fn refuse_unread(mut self, stream: ClientStream, refusal: &Refusal) {
        let target = self.destination.to_target();
        self.refuse(target, refusal);
        reset(stream);
    }

    async fn serve_tls(
        mut self,
        state: &Arc<InterceptState>,
        stream: ClientStream,
        hello: ParsedClientHello,
        deadline: Instant,
    ) {
        let mut target = RequestTarget::from_client_hello(&self.destination, hello.sni.clone());
        target.denied_connect = self.check.denied_connect();
        let may_pass_through = target.refusal.is_none() && target.denied_connect.is_none();
        let connection = Arc::clone(self.record.connection());
        let client = &connection.info;
        if may_pass_through
            && state
                .config
                .passes_through(client.addr.ip(), &target.to.host)
        {
            return self.relay_unopened(state, stream, target).await;
        }
        let handshake = finish_handshake(state, client, stream, hello, &target);
        let finished = timeout_at(deadline, handshake).await;
        let stream = match finished.unwrap_or_else(|_| Err(OpeningError::Late.to_refusal())) {
            Ok(stream) => stream,
            Err(refusal) => return self.refuse(target, &refusal),
        };
        let (_, session) = stream.get_ref();
        target.tls_version = session.protocol_version().map(tls_version);
        let http2 = session.alpn_protocol() == Some(b"h2");
        target.alpn = session
            .alpn_protocol()
            .map(|_| if http2 { "h2" } else { "http/1.1" });
        let target = Arc::new(target);
        self.record.defer_to_tunnel_requests(&target);
        let server = HttpServer::new(state, &connection);
        if http2 {
            server.serve_http2(stream, target).await;
        } else {
            let target = ServedTarget::Connection(target);
            server.serve_http1(stream, target).await;
        }
    }

    /// Serves HTTP without TLS. On a redirected connection only the requests name a host. The proxy resolves that name and
    /// ignores the destination's IP address: the client could combine any name with any address.
    async fn serve_http(mut self, state: &Arc<InterceptState>, stream: ClientStream) {
        let mut target = self.destination.to_target();
        target.denied_connect = self.check.denied_connect();
        let connection = Arc::clone(self.record.connection());
        let target = Arc::new(target);
        self.record.defer_to_tunnel_requests(&target);
        let served = match self.destination {
            Destination::Connect { .. } | Destination::Named(_) => ServedTarget::Connection(target),
            Destination::Redirected(addr) => ServedTarget::ByHost { port: addr.port() },
        };
        let server = HttpServer::new(state, &connection);
        server.serve_http1(stream, served).await;
    }

    async fn serve_unknown(mut self, state: &Arc<InterceptState>, stream: ClientStream) {
        let target = self.destination.to_target();
        let is_relayed = state.relays(&target.to) && !state.inspects_requests();
        if is_relayed && self.check.denied_connect().is_none() {
            return self.relay_unopened(state, stream, target).await;
        }
        if state.has_policy() {
            let target = Arc::new(target);
            self.record.set_target(&target);
            let detail = "neither TLS nor HTTP, which no check could inspect";
            let code = "unknown_protocol";
            self.record.set_refused_by_rule();
            self.record.record_list_denial();
            let to = rule_with_port(&target.to);
            let is_jailed = matches!(self.destination, Destination::Named(_));
            self.record.remedy = match HTTP_PORTS.contains(&target.to.port) {
                // With a check service or an approver, no rule would allow this connection to be relayed.
                _ if state.inspects_requests() => None,
                false => Some(Remedy::Allow(to)),
                // Rules never relay HTTP's ports. `--allow-tcp` does, but only a jail has this option.
                true => is_jailed.then_some(Remedy::AllowTcp(to)),
            };
            self.refuse(target, &Refusal::new(StatusCode::FORBIDDEN, code, detail));
            return reset(stream);
        }
        self.record
            .set_decision(FinalDecision::Unchecked, "no_check");
        self.relay_unopened(state, stream, target).await;
    }

    /// Relays the connection as it is, if the check allows that. A CONNECT for a relayed tunnel was checked already.
    async fn relay_unopened(
        mut self,
        state: &Arc<InterceptState>,
        stream: ClientStream,
        target: RequestTarget,
    ) {
        self.record.connection().set_opening(false);
        let target = Arc::new(target);
        let decided = match std::mem::take(&mut self.check) {
            TunnelCheck::Allowed(allowed) if allowed.is_relayed() => Ok(allowed),
            // A CONNECT may have been allowed on the premise that its requests would be checked.
            _ => authorize_relay(state, &target, &mut self.record).await,
        };
        let allowed = match decided {
            Ok(allowed) => allowed,
            Err(denied) => {
                self.refuse(target, &denied.to_refusal());
                return reset(stream);
            }
        };
        self.record.set_target(&target);
        // No certificate is verified here, so the proxy resolves a name itself and ignores the client's address for it.
        match state.upstream.open_tunnel(&allowed).await {
            Ok(OpenTunnel { socket, info }) => {
                self.record.set_tunnelled(info.fields);
                let idle_timeout = state.config.tunnel_timeout;
                relay_bytes(stream, socket, idle_timeout, &mut self.record).await;
                // The connection has counted against the connection cap until now.
                drop(info);
            }
            Err(failed) => {
                let may_suggest_rule = state.may_suggest_rule(&target.to.host);
                failed.record_in(&mut self.record, may_suggest_rule);
                self.record.set_unanswered(&failed.into());
                reset(stream);
            }
        }
    }

    /// Records that nothing was forwarded, and why.
    fn refuse(&mut self, target: impl Into<Arc<RequestTarget>>, refusal: &Refusal) {
        self.record.set_target(&target.into());
        self.record.set_unanswered(refusal);
    }
}

/// Finishes the handshake as a TLS server, with a certificate for the target's host.
async fn finish_handshake(
    state: &InterceptState,
    client: &ClientInfo,
    stream: ClientStream,
    hello: ParsedClientHello,
    target: &RequestTarget,
) -> Result<TlsStream<CorkedStream<ClientSocket>>, Refusal> {
    // HTTP/2, unless the origin is known not to support it and the client offers HTTP/1.1, too.
    let is_http1_only = || {
        state
            .upstream
            .is_http1_only(&target.to, target.original_dst)
    };
    let protocols: &[&[u8]] = if hello.http2 && !(hello.http1 && is_http1_only()) {
        &[b"h2", b"http/1.1"]
    } else {
        &[b"http/1.1"]
    };
    let client = client.addr.ip();
    let config = mint_config(state, client, target, hello.support, protocols).await;
    // The acceptor has parsed the prefix.
    let (socket, _) = stream.into_parts();
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            let start = StartHandshake::from_parts(hello.accepted, socket);
            // The handshake fails, and sends the client an alert.
            drop(start.into_stream(state.mint.refusing_config()).await);
            return Err(no_certificate(&error));
        }
    };
    let start = StartHandshake::from_parts(hello.accepted, CorkedStream::new(socket));
    let finished = match start.into_stream(config).into_fallible().await {
        Ok(mut stream) => {
            let (socket, session) = stream.get_mut();
            // In TLS 1.2 the client waits for the server's Finished, which is the last message.
            let is_awaited = session.protocol_version() != Some(ProtocolVersion::TLSv1_3);
            socket.handshake_done(is_awaited);
            Ok(stream)
        }
        Err((error, socket)) => {
            socket.handshake_failed().await;
            Err(error)
        }
    };
    if let Some(pinned) = &state.config.pinned {
        match &finished {
            Ok(_) => pinned.record_accepted(client, &target.to.host),
            Err(error) if pinned.record_failed(client, &target.to.host, error) => {
                tracing::info!(client = %client, host = %target.host, "the client does not trust the proxy's authority: TLS to this host is not opened for a day");
            }
            Err(_) => {}
        }
    }
    finished.map_err(|error| {
        let detail = format!("the client's TLS handshake failed: {error}");
        Refusal::new(StatusCode::BAD_REQUEST, "client_tls", detail)
            .with_hint(
                "does the client trust the proxy's authority (`peername ca env`; on another machine see \"Clients on other \
                 machines\" in docs/ca.md)?",
            )
    })
}

/// Makes the configuration of a handshake with a certificate for the target's host. The client is first admitted to the
/// certificate ([`Mint::admit`](crate::ca::mint::Mint::admit)); for a CONNECT this was done before the CONNECT was answered.
async fn mint_config(
    state: &InterceptState,
    client: IpAddr,
    target: &RequestTarget,
    support: ClientSupport,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, MintError> {
    let host = &target.to.host;
    let is_admitted = target
        .connect
        .as_ref()
        .is_some_and(|connect| connect.host == *host);
    if !is_admitted {
        state.mint.admit(client, host).await?;
    }
    state.mint.server_config(host, support, protocols).await
}

/// The refusal for a client that gets no certificate.
pub(crate) fn no_certificate(error: &MintError) -> Refusal {
    let detail = error.to_string();
    match error {
        MintError::TooMany => {
            let status = StatusCode::TOO_MANY_REQUESTS;
            Refusal::new(status, "too_many_certificates", detail).with_kind(RefusalKind::RateLimit)
        }
        _ => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_certificate", detail),
    }
}

/// Authorizes a redirected or jailed connection that is to be relayed. It has no request to check, so it is checked as the CONNECT
/// that it stands for.
async fn authorize_relay(
    state: &InterceptState,
    target: &Arc<RequestTarget>,
    record: &mut InFlightRecord,
) -> Result<AllowedTunnel, Denied> {
    let connect = connect_head(Version::HTTP_11, HeaderMap::new());
    let connection = Arc::clone(record.connection());
    let mut authorizer = state.authorizer(&connection.info, target);
    authorizer.relays_tunnel = true;
    authorizer.authorize_tunnel(&connect, record).await
}

/// Relays bytes in both directions, the stream's prefix first.
async fn relay_bytes(
    stream: ClientStream,
    upstream: TcpStream,
    idle_timeout: Duration,
    record: &mut InFlightRecord,
) {
    let (socket, prefix) = stream.into_parts();
    let Some(downstream) = socket.into_stream() else {
        return;
    };
    let stats = Arc::clone(record.connection().entry.stats());
    let pair = Pair {
        downstream,
        upstream,
    };
    let prefix = Prefix {
        bytes: prefix.into(),
        sent: 0,
        has_more: false,
    };
    let limits = Limits {
        idle: Some(idle_timeout),
        half_closed: idle_timeout,
        ..Limits::default()
    };
    let end = relay(
        pair,
        prefix,
        peername_relay::Method::Auto,
        limits,
        Arc::clone(&stats),
    )
    .await;
    record.add_relayed(stats.tally());
    record.end = match end {
        End::Finished(_) => ExchangeEnd::Complete,
        End::Idle => ExchangeEnd::Idle,
        End::Reset(Side::Upstream) => ExchangeEnd::CutByOrigin,
        End::Reset(Side::Downstream) => ExchangeEnd::Cut,
    };
}

/// Closes with RST, so that the client does not take the end of the connection for the end of a response.
fn reset(stream: ClientStream) {
    let (socket, _) = stream.into_parts();
    socket.reset();
}
