//! The proxy that clients know of: CONNECT, and `http:` requests in absolute form.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use tokio::net::TcpStream;

use crate::http::error_response::Form;
use crate::authz::authorize::{self, Asking, NO_BODY};
use crate::audit::Record;
use crate::http::response_body::Answer;
use crate::authz::Kind;
use crate::http::client_connection::Client;
use crate::http::exchange::{Exchange, Switched};
use crate::host::HostPort;
use crate::request::id;
use crate::http::http_server::{self, Answering, First, Slot, put, take};
use crate::ca::mint;
use crate::request::target::{Going, Named, asked};
use crate::request::refusal::Refusal;
use crate::state::Site;
use crate::tls::tunnel::{Tunnel, is_left_alone, no_certificate};
use crate::http::websocket;

/// Answers a client that speaks to the proxy itself.
#[derive(Clone)]
struct Explicit {
    site: Arc<Site>,
    client: Arc<Client>,
    next: Slot<Next>,
}

/// What the connection is for, once it is no HTTP to us any more.
enum Next {
    Tunnel(Tunnel),
    Switched(Switched),
}

/// Serves a connection to its end.
pub(crate) async fn serve(site: &Arc<Site>, client: Arc<Client>, socket: TcpStream) {
    let service = Explicit {
        site: Arc::clone(site),
        client: Arc::clone(&client),
        next: Slot::default(),
    };
    let Some((wire, service)) = http_server::http1(site, &client, socket, service, First::Awaited).await
    else {
        return;
    };
    match take(&service.next) {
        None => http_server::finish(wire).await,
        Some(Next::Switched(switched)) => websocket::carry(wire, switched).await,
        Some(Next::Tunnel(tunnel)) => {
            tunnel.serve(site, &client, wire).await;
        }
    }
}

impl Service<Request<Incoming>> for Explicit {
    type Response = Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let this = self.clone();
        Box::pin(async move {
            Ok(match *request.method() {
                Method::CONNECT => this.connect(request).await,
                _ => this.absolute(request).await,
            })
        })
    }
}

impl Explicit {
    /// Decides on a tunnel. Nothing is dialled yet: the client can begin its handshake at once.
    async fn connect(&self, request: Request<Incoming>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let method = parts.method.as_str();
        let mut record = Record::begin(&self.site.metrics, &self.client, method);
        let form = Form::of_connect(&parts.headers);
        match self.site.access().user(&parts.headers).await {
            Ok(user) => self.client.is_user(user),
            Err(refusal) => return form.refuse(&refusal, record),
        }
        let to = match target(&parts, &body) {
            Ok(to) => to,
            Err(refusal) => return form.refuse(&refusal.closing(), record),
        };
        let named = Arc::new(Named::plain(to.clone(), Some(to.clone())));
        record.named(&named);
        let asking = Asking {
            site: &self.site,
            client: &self.client,
            named: &named,
        };
        let asked = asking.ask(Kind::Connect, &parts, NO_BODY, &mut record);
        match asked.await.err() {
            // A browser shows nothing of an answer to CONNECT; it gets the same inside.
            Some(denied) if !is_browser(&parts.headers) => {
                let mut response = form.deny(&denied.of_tunnel(), record);
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                response
            }
            denied => {
                if let Err(error) = self.admit(&to).await {
                    record.overruled();
                    return form.refuse(&no_certificate(&error).closing(), record);
                }
                let tunnel = Tunnel {
                    going: Going::Connect(to),
                    record,
                    denied: denied.map(|_| Arc::new(authorize::connect(parts.version, parts.headers))),
                };
                put(&self.next, Some(Next::Tunnel(tunnel)));
                Response::new(Answer::ours(Bytes::new(), None))
            }
        }
    }

    /// Whether the client may cause the certificate that it will ask for, unless its TLS is not to be opened.
    async fn admit(&self, to: &HostPort) -> Result<(), mint::Error> {
        let ip = self.client.client.ip();
        match is_left_alone(&self.site, ip, &to.host) {
            true => Ok(()),
            false => self.site.mint.admit(ip, &to.host).await,
        }
    }

    /// A request that says itself where it goes.
    async fn absolute(&self, request: Request<Incoming>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let authenticated = self.site.access().user(&parts.headers).await;
        let allowed = authenticated.and_then(|user| Ok((user, destination(&parts)?)));
        let (user, to) = match allowed {
            Ok(allowed) => allowed,
            Err(refusal) => {
                let method = parts.method.as_str();
                let mut record = Record::begin(&self.site.metrics, &self.client, method);
                record.path(&parts.uri);
                return Form::of_connect(&parts.headers).refuse(&refusal, record);
            }
        };
        self.client.is_user(user);
        let exchange = Exchange {
            site: &self.site,
            client: &self.client,
            named: &Arc::new(Named::plain(to, None)),
        };
        let mut switched = None;
        let request = Request::from_parts(parts, body);
        let answer = exchange.answer(request, &mut switched).await;
        if let Some(switched) = switched {
            put(&self.next, Some(Next::Switched(switched)));
        }
        answer
    }
}

/// Where a CONNECT goes (RFC 9110, section 9.3.6).
fn target(parts: &Parts, body: &Incoming) -> Result<HostPort, Refusal> {
    is_new(parts)?;
    if !body.is_end_stream() || parts.headers.contains_key(header::CONTENT_LENGTH) {
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
    // Host is no more than a repetition, which some clients leave out; but it must not name another.
    match asked(parts, to.port)? {
        Some(asked) if asked != to => {
            let detail = format!("CONNECT names {to} and its Host header {asked}");
            Err(Refusal::names(StatusCode::FORBIDDEN, detail))
        }
        _ => Ok(to),
    }
}

fn destination(parts: &Parts) -> Result<HostPort, Refusal> {
    is_new(parts)?;
    match parts.uri.scheme_str() {
        Some("http") => {}
        Some(_) => {
            let detail = "only http: can be asked for in absolute form; for https: use CONNECT";
            return Err(Refusal::bad_request(detail));
        }
        None => {
            let detail = "this is a proxy: it wants CONNECT host:port or GET http://host/path";
            return Err(Refusal::bad_request(detail));
        }
    }
    asked(parts, 80)?.ok_or_else(|| Refusal::bad_request("the request names no host"))
}

fn is_new(parts: &Parts) -> Result<(), Refusal> {
    if id::is_in_via(&parts.headers) {
        let detail = "the request has been here before: proxies send it round";
        let status = StatusCode::LOOP_DETECTED;
        return Err(Refusal::new(status, "proxy_loop", detail));
    }
    Ok(())
}

/// All of them say so, for reasons of the nineties.
fn is_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT);
    agent.is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"))
}
