//! Error responses of the proxy, in the format that the client understands: a page for people, problem details (RFC 9457)
//! for programs, a status in trailers for gRPC.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::in_flight::InFlightRecord;
use super::response_body::ResponseBody;
use crate::authz::authorize::Denied;
use crate::request::refusal::{Refusal, RefusalKind};
use crate::request::remedy::Remedy;

/// The format of a client's error responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    Page,
    Problem,
    Grpc,
}

impl ErrorFormat {
    /// Selects the format for a request to the proxy itself, a CONNECT or one in absolute form: never gRPC's, because its status
    /// 200 would grant a tunnel, and hide a 407.
    pub(crate) fn for_proxy_request(headers: &HeaderMap) -> Self {
        match Self::from_request(headers) {
            Self::Grpc => Self::Problem,
            format => format,
        }
    }

    /// Selects the format by Content-Type and Accept of the request.
    pub(crate) fn from_request(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let is_grpc =
            text(header::CONTENT_TYPE).is_some_and(|value| value.starts_with("application/grpc"));
        let wants_page = text(header::ACCEPT).is_some_and(|value| value.contains("text/html"));
        if is_grpc {
            Self::Grpc
        } else if wants_page {
            Self::Page
        } else {
            Self::Problem
        }
    }

    /// Builds the response for a refusal by a rule of the proxy, or for a failure on the path to the origin.
    pub(crate) fn refuse(
        self,
        refusal: &Refusal,
        record: Box<InFlightRecord>,
    ) -> Response<ResponseBody> {
        let (kind, body) = match self {
            Self::Grpc => return respond_in_trailers(refusal, record),
            Self::Page => ("text/html; charset=utf-8", html_page(refusal, &record)),
            Self::Problem => (
                "application/problem+json",
                problem_details(refusal, &record),
            ),
        };
        let mut response = respond(refusal, body.into(), record);
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    /// Builds the response for a denial by the check service, with the service's own body where it has one.
    pub(crate) fn deny(
        self,
        denied: &Denied,
        record: Box<InFlightRecord>,
    ) -> Response<ResponseBody> {
        let (refusal, denial) = (denied.to_refusal(), &denied.denial);
        if self == Self::Grpc {
            return respond_in_trailers(&refusal, record);
        }
        let has_service_body = !denial.body.is_empty();
        let mut response = if has_service_body {
            respond(&refusal, denial.body.clone(), record)
        } else {
            self.refuse(&refusal, record)
        };
        let headers = response.headers_mut();
        for (name, value) in &denial.headers {
            let describes_no_body = !has_service_body && name.as_str().starts_with("content-");
            if !describes_no_body
                && ![CODE, REQUEST_ID, CONTACT, header::CACHE_CONTROL].contains(name)
            {
                headers.append(name, value.clone());
            }
        }
        response
    }
}

/// The reason phrase of the status line: many clients show nothing else of a refused CONNECT or request. HTTP/2 has none.
fn reason_phrase(refusal: &Refusal, contact: Option<&str>) -> Option<ReasonPhrase> {
    let status = refusal.status.canonical_reason().unwrap_or("Refused");
    let contact = contact.map(|contact| format!(": {contact}"));
    let code = refusal.code;
    ReasonPhrase::try_from(format!("{status} ({code}){}", contact.unwrap_or_default())).ok()
}

/// The beginning of a text, with a question mark for each character that is not printable ASCII.
fn to_ascii(text: &str) -> String {
    text.chars()
        .take(MAX_CONTACT)
        .map(|c| if (' '..='~').contains(&c) { c } else { '?' })
        .collect()
}

fn respond(
    refusal: &Refusal,
    body: Bytes,
    mut record: Box<InFlightRecord>,
) -> Response<ResponseBody> {
    record.set_refused(refusal);
    let id = HeaderValue::try_from(record.id.to_string());
    let contact = record.contact().map(to_ascii);
    // The response to HEAD has the length and no body (RFC 9110, section 9.3.2); over HTTP/2 hyper would send both.
    let omitted = (record.method == Method::HEAD.as_str()).then_some(body.len());
    let body = if omitted.is_some() {
        Bytes::new()
    } else {
        body
    };
    let mut response = Response::new(ResponseBody::from_proxy(body, Some(record)));
    *response.status_mut() = refusal.status;
    if let Some(reason) = reason_phrase(refusal, contact.as_deref()) {
        response.extensions_mut().insert(reason);
    }
    let headers = response.headers_mut();
    // What is refused now may be allowed later.
    let no_store = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
    headers.insert(CODE, HeaderValue::from_static(refusal.code));
    if let Ok(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(Ok(contact)) = contact.map(HeaderValue::try_from) {
        headers.insert(CONTACT, contact);
    }
    if let Some(length) = omitted {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if refusal.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        let basic = HeaderValue::from_static("Basic realm=\"peername\", charset=\"UTF-8\"");
        headers.insert(header::PROXY_AUTHENTICATE, basic);
    }
    if refusal.kind == RefusalKind::RateLimit {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    if refusal.close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Builds a Trailers-Only response (gRPC over HTTP2, "Responses"): the status among the headers, and no body.
fn respond_in_trailers(refusal: &Refusal, record: Box<InFlightRecord>) -> Response<ResponseBody> {
    let mut response = respond(refusal, Bytes::new(), record);
    *response.status_mut() = StatusCode::OK;
    response.extensions_mut().remove::<ReasonPhrase>();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("application/grpc");
    headers.insert(header::CONTENT_TYPE, kind);
    let code = grpc_code(refusal.status);
    headers.insert(GRPC_STATUS, HeaderValue::from(i32::from(code)));
    // gRPC percent-encodes this header; printable ASCII but % needs no encoding, and the rest is left out.
    let message: String = refusal
        .detail
        .chars()
        .filter(|c| (' '..='~').contains(c) && *c != '%')
        .collect();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

fn grpc_code(status: StatusCode) -> tonic::Code {
    match status.as_u16() {
        401 => tonic::Code::Unauthenticated,
        504 => tonic::Code::DeadlineExceeded,
        502 | 503 => tonic::Code::Unavailable,
        _ => tonic::Code::PermissionDenied,
    }
}

fn problem_details(refusal: &Refusal, record: &InFlightRecord) -> String {
    #[derive(serde::Serialize)]
    struct Problem<'a> {
        r#type: &'static str,
        title: &'static str,
        status: u16,
        code: &'a str,
        detail: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        hint: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        #[serde(skip_serializing_if = "str::is_empty")]
        path: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        allow_by: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        contact: Option<&'a str>,
        request_id: &'a str,
    }
    let target = record.target.as_deref();
    let problem = Problem {
        r#type: "about:blank",
        title: refusal.status.canonical_reason().unwrap_or("Refused"),
        status: refusal.status.as_u16(),
        code: refusal.code,
        detail: &refusal.detail,
        hint: hint(refusal, record),
        host: target.map(|target| &*target.host),
        port: target.map(|target| target.to.port),
        path: &record.path,
        allow_by: record.remedy.as_ref().map(Remedy::to_string),
        contact: record.contact(),
        request_id: &record.id.to_string(),
    };
    // Strings and numbers always serialize. The line break is for terminals.
    serde_json::to_string(&problem).unwrap_or_default() + "\n"
}

/// What to do about the refusal. If it has no hint of its own, what its remedy would allow beside the request.
fn hint(refusal: &Refusal, record: &InFlightRecord) -> &'static str {
    match &record.remedy {
        Some(remedy) if refusal.hint.is_empty() => remedy.caution(),
        _ => refusal.hint,
    }
}

fn html_page(refusal: &Refusal, record: &InFlightRecord) -> String {
    let title = refusal.status.canonical_reason().unwrap_or("Refused");
    let status = refusal.status.as_u16();
    let mut paragraphs = vec![sentence(&refusal.detail)];
    let hint = hint(refusal, record);
    if !hint.is_empty() {
        paragraphs.push(sentence(hint));
    }
    if let Some(target) = &record.target {
        let requested = escape_html(&format!("{}{}", target.to, record.path));
        paragraphs.push(format!("The request was for <code>{requested}</code>."));
    }
    if let Some(remedy) = &record.remedy {
        let option = escape_html(&remedy.to_string());
        paragraphs.push(format!("What would allow it: <code>{option}</code>."));
    }
    if let Some(contact) = record.contact() {
        paragraphs.push(escape_html(contact));
    }
    let paragraphs = paragraphs.join("</p>\n<p>");
    let (code, id) = (refusal.code, &record.id);
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{status} {title}</title>\n\
         <style>body{{font:16px/1.5 sans-serif;max-width:40em;margin:10vh auto;padding:0 1em}}\
         code{{background:#eee;padding:0 .3em}}</style>\n\
         <h1>{title}</h1>\n<p>{paragraphs}</p>\n\
         <p><small>This answer is the proxy's. Code <code>{code}</code>, request \
         <code>{id}</code>.</small></p>\n"
    )
}

/// A text as a sentence of a page: escaped, with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    let text: String = first.into_iter().chain(chars).collect();
    let stop = if text.ends_with(['.', '?', '!']) {
        ""
    } else {
        "."
    };
    escape_html(&text) + stop
}

fn escape_html(text: &str) -> String {
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
/// The text of `--contact`.
pub(crate) const CONTACT: HeaderName = HeaderName::from_static("x-peername-contact");
/// The maximum number of characters of the contact in a header and the status line.
const MAX_CONTACT: usize = 200;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
