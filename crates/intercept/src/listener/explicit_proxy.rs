//! The explicit proxy, which clients are configured with: CONNECT, and requests in absolute form.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Body, Incoming};

use super::tunnel::{Tunnel, TunnelCheck, no_certificate};
use crate::authz::authorize::connect_head;
use crate::ca::mint::error::MintError;
use crate::host::HostPort;
use crate::http::client_connection::ClientConnection;
use crate::http::error_response::ErrorFormat;
use crate::http::exchange::Exchange;
use crate::http::http_server::{ResponseFuture, SwitchSlot, linger_and_close, run_http1};
use crate::http::in_flight::InFlightRecord;
use crate::http::response_body::ResponseBody;
use crate::http::websocket::{self, Switched};
use crate::policy::access::tried_user;
use crate::request::refusal::Refusal;
use crate::request::target::{Destination, RequestTarget, requested_host};
use crate::request::via;
use crate::state::InterceptState;
use crate::stream::client_socket::ClientStream;

/// Serves a client that addresses the proxy itself.
#[derive(Clone)]
struct ExplicitProxy {
    state: Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    next: SwitchSlot<NextProtocol>,
}

/// What the connection carries once it is no longer HTTP to the proxy.
enum NextProtocol {
    Tunnel(Tunnel),
    Switched(Switched),
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    state: &Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    stream: ClientStream,
) {
    let proxy = ExplicitProxy {
        state: Arc::clone(state),
        connection: Arc::clone(&connection),
        next: SwitchSlot::default(),
    };
    let respond = |request| proxy.respond(request);
    let ended = run_http1(state, &connection, stream, None, respond).await;
    let Some(stream) = ended else {
        return;
    };
    let stream = stream.flatten();
    let next = proxy.next.lock().take();
    match next {
        None => linger_and_close(stream).await,
        Some(NextProtocol::Switched(switched)) => websocket::relay(stream, switched).await,
        Some(NextProtocol::Tunnel(tunnel)) => tunnel.serve(state, stream).await,
    }
}

impl ExplicitProxy {
    fn respond(&self, request: Request<Incoming>) -> ResponseFuture {
        let this = self.clone();
        Box::pin(async move {
            Ok(match *request.method() {
                Method::CONNECT => this.respond_to_connect(request).await,
                _ => this.respond_to_absolute(request).await,
            })
        })
    }

    fn begin_record(&self, parts: &Parts) -> Box<InFlightRecord> {
        let method = parts.method.as_str();
        let mut record = InFlightRecord::begin(&self.state, &self.connection, method);
        record.set_head(parts);
        record.set_first_named(parts);
        record
    }

    /// Decides on a tunnel. The origin is not dialled yet: the client can begin its handshake at once.
    async fn respond_to_connect(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let mut record = self.begin_record(&parts);
        let format = ErrorFormat::for_proxy_request(&parts.headers);
        let client = &self.connection.info;
        let lists = self.state.lists();
        let ip = client.addr.ip();
        // The target is read before the user is known, so that the audit line of a 407 has it.
        let target = connect_target(&parts, &body)
            .map(|to| Arc::new(RequestTarget::from_connect(to, via::read(&parts.headers))));
        if let Ok(target) = &target {
            record.set_target(target);
        }
        match lists.access.authenticate(&parts.headers, ip).await {
            Ok(user) => record.user = user,
            Err(refusal) => {
                record.set_unauthenticated(tried_user(refusal.code, &parts.headers).as_deref());
                return format.refuse(&refusal.with_close(), record);
            }
        }
        let target = match target {
            Ok(target) => target,
            Err(refusal) => return format.refuse(&refusal.with_close(), record),
        };
        let to = target.to.clone();
        let mut authorizer = self.state.authorizer(client, &target);
        authorizer.relays_tunnel = self.state.config.passes_through(ip, &to.host);
        let check = match authorizer.authorize_tunnel(&parts, &mut record).await {
            Ok(allowed) => TunnelCheck::Allowed(allowed),
            // A browser shows nothing of a response to CONNECT, so it gets the denial inside the tunnel.
            Err(_) if is_browser(&parts.headers) => {
                TunnelCheck::Denied(connect_head(parts.version, parts.headers).into())
            }
            Err(denied) => {
                let mut response = format.deny(&denied.for_tunnel(), record);
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                return response;
            }
        };
        if let Err(error) = self.admit(&to).await {
            record.set_refused_by_rule();
            return format.refuse(&no_certificate(&error).with_close(), record);
        }
        client.set_tunnel_user(record.user.clone());
        let tunnel = Tunnel {
            destination: Destination::Connect {
                to,
                via: Arc::clone(&target.via),
            },
            record,
            check,
        };
        *self.next.lock() = Some(NextProtocol::Tunnel(tunnel));
        Response::new(ResponseBody::from_proxy(Bytes::new(), None))
    }

    /// Admits the client to the certificate that it will need, unless its TLS is passed through.
    async fn admit(&self, to: &HostPort) -> Result<(), MintError> {
        let ip = self.connection.info.addr.ip();
        if self.state.config.passes_through(ip, &to.host) {
            return Ok(());
        }
        self.state.mint.admit(ip, &to.host).await
    }

    /// Answers a request in absolute form, which names its own target.
    async fn respond_to_absolute(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let lists = self.state.lists();
        let client = self.connection.info.addr.ip();
        let user = match lists.access.authenticate(&parts.headers, client).await {
            Ok(user) => user,
            Err(refusal) => {
                let mut record = self.begin_record(&parts);
                record.set_unauthenticated(tried_user(refusal.code, &parts.headers).as_deref());
                return ErrorFormat::for_proxy_request(&parts.headers).refuse(&refusal, record);
            }
        };
        let target = match absolute_target(&parts) {
            Ok(target) => target,
            Err(refusal) => {
                let mut record = self.begin_record(&parts);
                record.user = user;
                return ErrorFormat::for_proxy_request(&parts.headers).refuse(&refusal, record);
            }
        };
        let exchange = Exchange {
            state: &self.state,
            connection: &self.connection,
            target: &Arc::new(target),
            user,
        };
        let mut switched = None;
        let request = Request::from_parts(parts, body);
        let response = exchange.respond(request, &mut switched).await;
        if let Some(switched) = switched {
            *self.next.lock() = Some(NextProtocol::Switched(switched));
        }
        response
    }
}

/// The target of a CONNECT (RFC 9110, section 9.3.6).
fn connect_target(parts: &Parts, body: &Incoming) -> Result<HostPort, Refusal> {
    refuse_loop(parts)?;
    // WinINet sends a Content-Length of 0.
    let mut lengths = parts.headers.get_all(header::CONTENT_LENGTH).iter();
    if !body.is_end_stream() || lengths.any(|length| length != "0") {
        return Err(Refusal::bad_request("CONNECT with a body"));
    }
    if parts.uri.scheme().is_some() {
        return Err(Refusal::bad_request("CONNECT wants host:port, and no URL"));
    }
    let authority = parts
        .uri
        .authority()
        .map_or("", |authority| authority.as_str());
    let to = HostPort::parse(authority)
        .map_err(|why| Refusal::bad_request(format!("CONNECT wants host:port: {why}")))?;
    // Host only repeats the target, and some clients leave it out; but it must not name another target.
    match requested_host(parts, to.port)? {
        Some(host) if host != to => {
            let detail = format!("CONNECT names {to} and its Host header {host}");
            Err(Refusal::name_mismatch(StatusCode::FORBIDDEN, detail))
        }
        _ => Ok(to),
    }
}

/// The target of a request in absolute form. Some clients send `https:` requests in this form instead of a CONNECT: then only
/// the connection to the origin is encrypted.
fn absolute_target(parts: &Parts) -> Result<RequestTarget, Refusal> {
    refuse_loop(parts)?;
    let (tls, default_port) = match parts.uri.scheme_str() {
        Some("http") => (false, 80),
        Some("https") => (true, 443),
        Some(_) => {
            let detail = "only http: and https: can be asked for in absolute form";
            return Err(Refusal::bad_request(detail));
        }
        None => {
            let detail = "this is a proxy: it wants CONNECT host:port or GET http://host/path";
            return Err(Refusal::bad_request(detail));
        }
    };
    let to = requested_host(parts, default_port)?
        .ok_or_else(|| Refusal::bad_request("the request names no host"))?;
    Ok(if tls {
        RequestTarget::encrypted(to)
    } else {
        RequestTarget::plain(to)
    })
}

/// Refuses a request that came through this process before: proxies forward it in a loop.
fn refuse_loop(parts: &Parts) -> Result<(), Refusal> {
    let detail = if via::is_in_via(&parts.headers) {
        "the request has passed this proxy before: proxies forward it in a loop"
    } else if via::is_too_long(&parts.headers) {
        "the request has passed too many proxies, by its Via header: they forward it in a loop"
    } else {
        return Ok(());
    };
    let status = StatusCode::LOOP_DETECTED;
    Err(Refusal::new(status, "proxy_loop", detail))
}

/// Whether the request that begins with these bytes is for a proxy: a CONNECT, or a request in absolute form.
pub(crate) fn is_to_proxy(request: &[u8]) -> bool {
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let has_scheme = |scheme: &[u8]| {
        target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    method == Some(b"CONNECT") || has_scheme(b"http://") || has_scheme(b"https://")
}

/// Whether the client is a browser: for historical reasons, all of them call themselves Mozilla.
fn is_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT);
    agent.is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"))
}
