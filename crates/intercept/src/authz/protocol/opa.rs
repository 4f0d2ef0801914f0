//! OPA's data API: `POST /v1/data/…` with an `input`, answered by a `result`.
//!
//! The input has the shape that OPA's Envoy plugin gives it, and the result may have what that plugin reads, so
//! that a policy can be asked either way.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use super::attributes;
use crate::authz::config::Sent;
use crate::authz::header_mutations::{Changes, Mode, Of};
use crate::authz::request::Question;
use crate::authz::response::{Answer, Keep};
use crate::authz::verdict::{Denial, Failure, printable};

/// The request that asks.
pub(crate) fn request(uri: &Uri, question: &Question<'_>, sent: &Sent) -> Request<Bytes> {
    let mut request = Request::new(json!({ "input": input(question, sent) }).to_string().into());
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri.clone();
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    request
}

fn input(question: &Question<'_>, sent: &Sent) -> Value {
    let mut input = json!({
        "attributes": {
            "source": {
                "address": address(&question.client.ip().to_string(), question.client.port()),
            },
            "destination": { "address": address(question.to.host, question.to.port) },
            "request": { "http": {
                "id": question.request_id,
                "method": question.method.as_str(),
                "scheme": question.scheme,
                "host": question.host(),
                "path": question.path_and_query,
                "protocol": attributes::protocol(question),
                "headers": attributes::headers(question, sent),
                "size": attributes::size(question),
            } },
            "tlsSession": { "sni": question.sni.unwrap_or_default() },
            "contextExtensions": attributes::extensions(question),
        },
    });
    if let Some(body) = question.body {
        input["attributes"]["request"]["http"]["body"] = attributes::text(body.bytes).into();
        input["truncated_body"] = body.truncated.into();
    }
    input
}

fn address(host: &str, port: u16) -> Value {
    json!({ "socketAddress": { "address": host, "portValue": port } })
}

#[derive(Deserialize)]
struct Reply {
    result: Option<Value>,
}

/// What a policy may say besides yes and no. A field of another type is not a yes.
#[derive(Deserialize)]
struct Ruling {
    #[serde(alias = "allowed")]
    allow: Option<bool>,
    reason: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    response_headers_to_add: BTreeMap<String, String>,
    #[serde(default)]
    request_headers_to_remove: Vec<String>,
    body: Option<String>,
    #[serde(alias = "status")]
    http_status: Option<u16>,
    cache_control: Option<String>,
}

/// What the service said. No result is OPA's "undefined", which is no.
///
/// # Errors
///
/// [`Failure::Status`] for anything but 200, [`Failure::Malformed`] for anything but JSON with or without a
/// result.
pub fn read(status: StatusCode, body: &[u8]) -> Result<Answer, Failure> {
    if status != StatusCode::OK {
        return Err(Failure::Status(printable(&format!(
            "HTTP status {}",
            status.as_u16()
        ))));
    }
    let reply = serde_json::from_slice::<Reply>(body);
    let reply = reply.map_err(|_| Failure::Malformed("not a JSON object of OPA's data API"))?;
    Ok(match reply.result {
        None => denied("the policy is undefined"),
        Some(Value::Bool(true)) => Answer::allow(Changes::default()),
        Some(Value::Bool(false)) => denied(""),
        Some(result @ Value::Object(_)) => match serde_json::from_value::<Ruling>(result) {
            Ok(ruling) => ruling.answer(),
            Err(_) => denied("a field of the policy's result has another type"),
        },
        Some(_) => denied("the policy's result is neither boolean nor object"),
    })
}

fn denied(reason: &str) -> Answer {
    Answer::deny(Denial::new(StatusCode::FORBIDDEN, reason))
}

impl Ruling {
    fn answer(self) -> Answer {
        let keep = self
            .cache_control
            .as_deref()
            .map(Keep::of)
            .unwrap_or_default();
        let answer = match self.allow {
            Some(true) => Answer::allow(self.changes()),
            Some(false) => Answer::deny(self.denial("")),
            None => Answer::deny(self.denial("the policy's result has no allow")),
        };
        answer.kept(keep)
    }

    fn changes(&self) -> Changes {
        let mut changes = Changes::default();
        for name in &self.request_headers_to_remove {
            changes.remove(name.as_bytes());
        }
        for (name, value) in &self.headers {
            changes.put(Of::Request, name.as_bytes(), value.as_bytes(), Mode::Set);
        }
        for (name, value) in &self.response_headers_to_add {
            changes.put(
                Of::Response,
                name.as_bytes(),
                value.as_bytes(),
                Mode::Append,
            );
        }
        changes
    }

    fn denial(self, otherwise: &str) -> Denial {
        let status = self
            .http_status
            .and_then(|status| StatusCode::from_u16(status).ok());
        let reason = self.reason.as_deref().unwrap_or(otherwise);
        let mut denial = Denial::new(status.unwrap_or(StatusCode::FORBIDDEN), reason);
        for (name, value) in self.headers {
            denial.add(name.as_bytes(), value.as_bytes());
        }
        denial.body = self.body.unwrap_or_default().into();
        denial
    }
}
