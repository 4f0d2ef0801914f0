//! A refusal in the form that its reader understands: a page for people, problem details (RFC 9457) for
//! programs, a status in trailers for gRPC.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::authz::authorize::Denied;
use crate::audit::Record;
use crate::http::response_body::Answer;
use crate::request::refusal::Refusal;

/// How a client wants to be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Page,
    Problem,
    Grpc,
}

impl Form {
    /// Reads it off a request for a tunnel, which a 200 would grant.
    pub(crate) fn of_connect(headers: &HeaderMap) -> Self {
        match Self::of(headers) {
            Self::Grpc => Self::Problem,
            form => form,
        }
    }

    /// Reads it off the request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let is_grpc =
            text(header::CONTENT_TYPE).is_some_and(|value| value.starts_with("application/grpc"));
        let wants_page = text(header::ACCEPT).is_some_and(|value| value.contains("text/html"));
        match (is_grpc, wants_page) {
            (true, _) => Self::Grpc,
            (false, true) => Self::Page,
            (false, false) => Self::Problem,
        }
    }

    /// What our own rules, or the way to the origin, say.
    pub(crate) fn refuse(self, refusal: &Refusal, record: Box<Record>) -> Response<Answer> {
        let id = record.id.to_string();
        let (kind, body) = match self {
            Self::Grpc => return grpc(refusal, record),
            Self::Page => ("text/html; charset=utf-8", page(refusal, &id)),
            Self::Problem => ("application/problem+json", problem(refusal, &id)),
        };
        let mut response = respond(refusal, body.into(), record);
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    /// What the check says: its own words where it has some.
    pub(crate) fn deny(self, denied: &Denied, record: Box<Record>) -> Response<Answer> {
        let (refusal, denial) = (Refusal::denied(denied), &denied.denial);
        if self == Self::Grpc {
            return grpc(&refusal, record);
        }
        let is_ours = denial.body.is_empty();
        let mut response = match is_ours {
            true => self.refuse(&refusal, record),
            false => respond(&refusal, denial.body.clone(), record),
        };
        let headers = response.headers_mut();
        for (name, value) in &denial.headers {
            let describes_ours = is_ours && name.as_str().starts_with("content-");
            if !describes_ours && ![CODE, REQUEST_ID, header::CACHE_CONTROL].contains(name) {
                headers.append(name, value.clone());
            }
        }
        response
    }
}

fn respond(refusal: &Refusal, body: Bytes, mut record: Box<Record>) -> Response<Answer> {
    record.refused(refusal);
    let id = HeaderValue::try_from(record.id.to_string());
    // HEAD gets the length and not the body (RFC 9110, section 9.3.2); by HTTP/2, hyper would send both.
    let length = record.is_of_head().then_some(body.len());
    let body = length.map_or(body, |_| Bytes::new());
    let mut response = Response::new(Answer::ours(body, Some(record)));
    *response.status_mut() = refusal.status;
    let headers = response.headers_mut();
    // What is not allowed now may be later.
    let no_store = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
    headers.insert(CODE, HeaderValue::from_static(refusal.code));
    if let Ok(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if refusal.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        let basic = HeaderValue::from_static("Basic realm=\"peername\", charset=\"UTF-8\"");
        headers.insert(header::PROXY_AUTHENTICATE, basic);
    }
    if refusal.code == "too_many_certificates" {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    if refusal.close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Trailers-Only (gRPC over HTTP2, "Responses"): the status among the headers, and no body.
fn grpc(refusal: &Refusal, record: Box<Record>) -> Response<Answer> {
    let mut response = respond(refusal, Bytes::new(), record);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("application/grpc");
    headers.insert(header::CONTENT_TYPE, kind);
    let code = grpc_code(refusal.status);
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
    // Percent-encoded there, so that what is printable ASCII stays and the rest goes.
    let message = refusal.detail.chars();
    let message = message.filter(|c| (' '..='~').contains(c) && *c != '%');
    if let Ok(message) = HeaderValue::try_from(message.collect::<String>()) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

/// PERMISSION_DENIED, UNAUTHENTICATED, DEADLINE_EXCEEDED, UNAVAILABLE.
fn grpc_code(status: StatusCode) -> u8 {
    match status.as_u16() {
        401 => 16,
        504 => 4,
        502 | 503 => 14,
        _ => 7,
    }
}

fn problem(refusal: &Refusal, id: &str) -> String {
    #[derive(serde::Serialize)]
    struct Problem<'a> {
        r#type: &'static str,
        title: &'static str,
        status: u16,
        code: &'a str,
        detail: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        hint: &'a str,
        request_id: &'a str,
    }
    let problem = Problem {
        r#type: "about:blank",
        title: refusal.status.canonical_reason().unwrap_or("Refused"),
        status: refusal.status.as_u16(),
        code: refusal.code,
        detail: &refusal.detail,
        hint: refusal.hint,
        request_id: id,
    };
    // Strings and a number can always be written.
    serde_json::to_string(&problem).unwrap_or_default()
}

fn page(refusal: &Refusal, id: &str) -> String {
    let title = refusal.status.canonical_reason().unwrap_or("Refused");
    let status = refusal.status.as_u16();
    let [detail, hint] = [&refusal.detail, refusal.hint].map(html);
    let code = refusal.code;
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{status} {title}</title>\n\
         <style>body{{font:16px/1.5 sans-serif;max-width:40em;margin:10vh auto;padding:0 1em}}\
         code{{background:#eee;padding:0 .3em}}</style>\n\
         <h1>{title}</h1>\n<p>{detail}.</p>\n<p>{hint}</p>\n\
         <p><small>This answer is the proxy's. Code <code>{code}</code>, request \
         <code>{id}</code>.</small></p>\n"
    )
}

fn html(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-peername-request-id");
pub(crate) const CODE: HeaderName = HeaderName::from_static("x-peername-code");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
