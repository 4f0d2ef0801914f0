//! forwardAuth, as Traefik asks: a GET that describes the request in `X-Forwarded-*`. A 2xx lets it through,
//! anything else is the client's answer.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode, Uri};

use crate::authz::config::Sent;
use crate::authz::header_mutations::{Changes, Mode, Of, is_free};
use crate::authz::request::Question;
use crate::authz::response::{Answer, Keep};
use crate::authz::verdict::{Denial, Failure, printable};

/// The request that asks.
///
/// # Errors
///
/// [`Failure::Malformed`] when something of the question can't be said in a header.
pub(crate) fn request(
    uri: &Uri,
    question: &Question<'_>,
    sent: &Sent,
) -> Result<Request<Bytes>, Failure> {
    let mut request = Request::get(uri.clone()).body(Bytes::new());
    let request = request.as_mut().map_err(|_| UNSAYABLE)?;
    let headers = request.headers_mut();
    for (name, value) in question.headers {
        let names = [name, &dashed(name)];
        if names
            .into_iter()
            .all(|name| sent.includes(name) && is_free(name) && !is_ours(name))
        {
            headers.append(name, value.clone());
        }
    }
    for (name, value) in described(question) {
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| UNSAYABLE)?;
        headers.insert(name, value);
    }
    Ok(std::mem::take(request))
}

fn described(question: &Question<'_>) -> Vec<(HeaderName, String)> {
    let connect = question.connect.map(|connect| connect.to_string());
    let all = [
        ("x-forwarded-method", Some(question.method.to_string())),
        ("x-forwarded-proto", filled(question.scheme)),
        ("x-forwarded-host", Some(question.host())),
        ("x-forwarded-port", Some(question.to.port.to_string())),
        ("x-forwarded-uri", filled(question.path_and_query)),
        ("x-forwarded-for", Some(question.client.ip().to_string())),
        ("x-request-id", filled(question.request_id)),
        ("x-peername-mode", Some(question.kind.name().to_owned())),
        ("x-peername-connect", connect),
        ("x-peername-sni", question.sni.map(str::to_owned)),
    ];
    let said = all.into_iter().filter_map(|(name, value)| {
        let name = HeaderName::from_static(name);
        value.map(|value| (name, value))
    });
    said.collect()
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The name that a service behind CGI, WSGI or PHP takes this one for: they make `X_A` and `X-A` the same
/// variable.
fn dashed(name: &HeaderName) -> HeaderName {
    let dashed = name.as_str().replace('_', "-");
    dashed.parse().unwrap_or_else(|_| name.clone())
}

/// Names that only we may use, whatever the client sent; and those that ask about another resource than the
/// service has: to them it would answer 304, or a part.
fn is_ours(name: &HeaderName) -> bool {
    let conditional = [
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::IF_RANGE,
        header::RANGE,
        header::FORWARDED,
    ];
    let name_text = name.as_str();
    conditional.contains(name)
        || name_text.starts_with("x-forwarded-")
        || name_text.starts_with("x-peername-")
        || ["x-request-id", "x-real-ip"].contains(&name_text)
}

/// What the service said. `take` are the headers of a yes that the request is to have.
///
/// # Errors
///
/// [`Failure::Status`] for 5xx: a service in trouble has not decided.
pub fn read(
    status: StatusCode,
    headers: &HeaderMap,
    body: Bytes,
    take: &[HeaderName],
) -> Result<Answer, Failure> {
    if status.is_server_error() {
        return Err(Failure::Status(printable(&format!(
            "HTTP status {}",
            status.as_u16()
        ))));
    }
    let answer = match status.is_success() {
        true => Answer::allow(taken(headers, take)),
        false => Answer::deny(denial(status, headers, body)),
    };
    let fields = headers.get_all(header::CACHE_CONTROL).iter();
    let fields = fields.map(|value| value.to_str().unwrap_or("no-store"));
    Ok(answer.kept(Keep::of(&fields.collect::<Vec<_>>().join(","))))
}

/// The client's own are removed, or it could say what the service did not.
fn taken(headers: &HeaderMap, take: &[HeaderName]) -> Changes {
    let mut changes = Changes::default();
    for name in take {
        changes.remove(name.as_str().as_bytes());
        for value in headers.get_all(name) {
            changes.put(
                Of::Request,
                name.as_str().as_bytes(),
                value.as_bytes(),
                Mode::Append,
            );
        }
    }
    changes
}

fn denial(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Denial {
    let mut denial = Denial::new(status, "");
    for (name, value) in headers {
        denial.add(name.as_str().as_bytes(), value.as_bytes());
    }
    denial.body = body;
    denial
}

const UNSAYABLE: Failure = Failure::Malformed("the request can't be described in headers");
