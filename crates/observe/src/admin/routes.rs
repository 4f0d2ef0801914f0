//! The paths of the admin endpoint and their responses.

use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::net::unix::UCred;
use tokio::time::timeout;
use tracing::Level;

use super::events::{MAX_STREAMS, StreamPermits};
use super::listing::ListQuery;
use super::page::{CONTENT_SECURITY_POLICY, PAGE};
use super::{AdminServer, Health, Via};
use crate::connections::{ConnectionSnapshot, ConnectionSource};

type AdminResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl<H: Health> AdminServer<H> {
    pub(super) async fn respond(
        &self,
        request: Request<Incoming>,
        via: Via,
        streams: &StreamPermits,
    ) -> AdminResponse {
        if !self.hosts.admit(request.headers()) {
            return plain(StatusCode::MISDIRECTED_REQUEST, OTHER_HOST);
        }
        match (request.method(), via) {
            (&Method::GET | &Method::HEAD, _) => self.get(&request, streams).await,
            (&Method::PUT | &Method::DELETE, Via::Network) => {
                plain(StatusCode::FORBIDDEN, NEEDS_UNIX_SOCKET)
            }
            (&Method::DELETE, Via::UnixSocket(peer)) => self.delete(&request, peer).await,
            (&Method::PUT, Via::UnixSocket(peer)) => self.put(request, peer).await,
            (_, Via::Network) => method_not_allowed("GET, HEAD"),
            (_, Via::UnixSocket(_)) => method_not_allowed("GET, HEAD, PUT, DELETE"),
        }
    }

    async fn get(&self, request: &Request<Incoming>, streams: &StreamPermits) -> AdminResponse {
        let query = request.uri().query();
        let resources = &self.resources;
        match request.uri().path() {
            "/" => page(),
            "/events" => match self.feed.subscribe(streams) {
                Some(events) => streaming_response(EVENT_STREAM, events),
                None => too_many_streams(),
            },
            "/metrics" => self.metrics().await,
            "/healthz" => self.get_liveness().await,
            "/readyz" => self.get_readiness().await,
            "/status" => full_response(StatusCode::OK, JSON, self.status_json().await),
            "/connections" => list(resources.connections.as_deref(), query),
            "/sessions" => list(resources.sessions.as_deref(), query),
            "/config" => match &resources.config {
                Some(config) => {
                    full_response(StatusCode::OK, JSON, config.0.load().as_ref().clone())
                }
                None => not_found(),
            },
            "/log-level" => match &resources.log_level {
                Some(level) => plain(StatusCode::OK, level_name(level.get()) + "\n"),
                None => not_found(),
            },
            _ => not_found(),
        }
    }

    async fn get_liveness(&self) -> AdminResponse {
        match timeout(LIVENESS_TIMEOUT, self.check_liveness()).await {
            Ok(()) => plain(StatusCode::OK, "ok\n"),
            Err(_) => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                H::HANG_REASON.to_owned() + "\n",
            ),
        }
    }

    async fn get_readiness(&self) -> AdminResponse {
        if let Err(reason) = self.check_readiness().await {
            return plain(StatusCode::SERVICE_UNAVAILABLE, reason + "\n");
        }
        match timeout(WARNING_TIMEOUT, self.health.warning()).await {
            Ok(Some(warning)) => plain(StatusCode::OK, format!("ready; {warning}\n")),
            _ => plain(StatusCode::OK, "ready\n"),
        }
    }

    async fn delete(&self, request: &Request<Incoming>, peer: Option<UCred>) -> AdminResponse {
        let path = request.uri().path();
        let Some(id) = path.strip_prefix("/connections/") else {
            if path.starts_with("/sessions/") {
                return plain(StatusCode::NOT_FOUND, NO_SESSIONS);
            }
            return not_found();
        };
        let Ok(id) = id.parse::<u64>() else {
            return plain(
                StatusCode::BAD_REQUEST,
                "DELETE /connections/ID: a number\n",
            );
        };
        let connections = self.resources.connections.as_ref();
        match connections.and_then(|connections| connections.end(id)) {
            None => plain(StatusCode::NOT_FOUND, "these can't be ended from here\n"),
            Some(ended) => match ended.await {
                Some(ended) => {
                    audit_ended(peer, &ended);
                    plain(StatusCode::OK, "ended\n")
                }
                None => plain(StatusCode::NOT_FOUND, "no connection has this id\n"),
            },
        }
    }

    async fn put(&self, request: Request<Incoming>, peer: Option<UCred>) -> AdminResponse {
        let path = request.uri().path().to_owned();
        let body = Limited::new(request.into_body(), MAX_BODY).collect();
        let Ok(Ok(body)) = timeout(BODY_TIMEOUT, body).await else {
            return plain(StatusCode::BAD_REQUEST, "the body is one word\n");
        };
        let body = body.to_bytes();
        let word = String::from_utf8_lossy(&body);
        match path.as_str() {
            "/log-level" => self.put_log_level(word.trim(), peer),
            "/readyz" => self.put_readiness(word.trim(), peer),
            _ => not_found(),
        }
    }

    fn put_readiness(&self, word: &str, peer: Option<UCred>) -> AdminResponse {
        let (in_maintenance, text) = match word {
            "maintenance" => (true, "maintenance\n"),
            "ready" => (false, "ready\n"),
            _ => return plain(StatusCode::BAD_REQUEST, "use maintenance or ready\n"),
        };
        let Some(_permit) = self.resources.history.permit_change() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, REPLACED);
        };
        if self.resources.history.set_maintenance(in_maintenance) != in_maintenance {
            audit(peer, format_args!("readiness was set to {word}"));
        }
        plain(StatusCode::OK, text)
    }

    fn put_log_level(&self, word: &str, peer: Option<UCred>) -> AdminResponse {
        let Some(level) = &self.resources.log_level else {
            return not_found();
        };
        let Ok(wanted) = word.parse() else {
            return plain(
                StatusCode::BAD_REQUEST,
                "the level is error, warn, info, debug or trace\n",
            );
        };
        let Some(_permit) = self.resources.history.permit_change() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, REPLACED);
        };
        // Logged before the change if the level in force shows the line, otherwise after the change.
        let is_shown = tracing::enabled!(Level::INFO);
        let (from, to) = (level_name(level.get()), level_name(wanted));
        let changed = format_args!("the level of the log was changed from {from} to {to}");
        if is_shown {
            audit(peer, changed);
        }
        if let Err(reason) = level.set(wanted) {
            return plain(StatusCode::INTERNAL_SERVER_ERROR, reason + "\n");
        }
        if !is_shown {
            audit(peer, changed);
        }
        plain(StatusCode::OK, to + "\n")
    }

    async fn metrics(&self) -> AdminResponse {
        match self.scrape().await {
            Ok(text) => full_response(StatusCode::OK, OPEN_METRICS, text),
            Err(_) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics can't be written\n",
            ),
        }
    }
}

fn level_name(level: Level) -> String {
    level.as_str().to_ascii_lowercase()
}

/// Logs a change that a process at the Unix socket has made.
fn audit(peer: Option<UCred>, change: impl Display) {
    let pid = peer.and_then(|peer| peer.pid());
    let uid = peer.map(|peer| peer.uid());
    tracing::info!(pid, uid, "--admin: {change}");
}

/// As [`audit`], with the addresses of a connection that was ended, as its own line has them.
fn audit_ended(by: Option<UCred>, ended: &ConnectionSnapshot) {
    let ConnectionSnapshot {
        id,
        peer,
        client,
        target,
        ..
    } = ended;
    let pid = by.and_then(|by| by.pid());
    let uid = by.map(|by| by.uid());
    tracing::info!(
        pid,
        uid,
        peer = %peer,
        client = client.map(tracing::field::display),
        upstream = target.map(tracing::field::display),
        "--admin: connection {id} was ended"
    );
}

fn list(source: Option<&dyn ConnectionSource>, query: Option<&str>) -> AdminResponse {
    let Some(source) = source else {
        return not_found();
    };
    match ListQuery::parse(query.unwrap_or_default()) {
        Ok(query) => streaming_response(JSON_LINES, query.render(source.snapshots())),
        Err(reason) => plain(StatusCode::BAD_REQUEST, reason + "\n"),
    }
}

fn page() -> AdminResponse {
    let mut page = full_response(StatusCode::OK, HTML, PAGE.to_owned());
    let headers = page.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    page
}

fn not_found() -> AdminResponse {
    plain(StatusCode::NOT_FOUND, PATHS)
}

fn too_many_streams() -> AdminResponse {
    let text = format!(
        "{MAX_STREAMS} event streams of this address are open already: close a page, or `peername top`; the other paths answer\n"
    );
    plain(StatusCode::SERVICE_UNAVAILABLE, text)
}

fn method_not_allowed(allowed: &'static str) -> AdminResponse {
    let text = format!("use one of {allowed}\n");
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, text);
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

fn plain(status: StatusCode, text: impl Into<String>) -> AdminResponse {
    full_response(status, TEXT, text.into())
}

fn full_response(status: StatusCode, content_type: &'static str, body: String) -> AdminResponse {
    response(status, content_type, Full::from(body).boxed_unsync())
}

fn streaming_response(
    content_type: &'static str,
    pieces: BoxStream<'static, Bytes>,
) -> AdminResponse {
    let frames = pieces.map(|bytes| Ok(Frame::data(bytes)));
    response(
        StatusCode::OK,
        content_type,
        StreamBody::new(frames).boxed_unsync(),
    )
}

fn response(
    status: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> AdminResponse {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

const OTHER_HOST: &str = "the Host or Origin of the request is not one of this server's; use http and its address, or add --admin-host NAME\n";
const NEEDS_UNIX_SOCKET: &str = "changes are accepted over a Unix socket only (--admin unix:PATH); \
    its mode restricts them to its owner and group\n";
const REPLACED: &str = "another process has taken over: connect again\n";
const NO_SESSIONS: &str = "only connections can be ended: DELETE /connections/ID; a UDP session ends after --close-after without a datagram, \
    or when --deny-client lists its client\n";
const PATHS: &str = "paths: /, /events, /metrics, /healthz, /readyz, /status, /connections, /sessions, /config, /log-level, \
    as far as this command has them\n";
const HTML: &str = "text/html; charset=utf-8";
const EVENT_STREAM: &str = "text/event-stream";
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";
const JSON_LINES: &str = "application/jsonl; charset=utf-8";
/// A worker that has not answered within this time hangs.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(2);
/// Balancers wait a second for the answer, or less: what it says beside `ready` must not make it late.
const WARNING_TIMEOUT: Duration = Duration::from_millis(300);
/// The body of a PUT is one word.
const MAX_BODY: usize = 64;
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
