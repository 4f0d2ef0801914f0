//! OPA's data API: `POST /v1/data/…` with an `input`, answered by a `result`.
//!
//! The input has the shape that OPA's Envoy plugin gives it, and the result may have the fields that the plugin reads, so
//! that one policy serves both.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, StatusCode, Uri, response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{EncodeConfig, EncodedRequest, HttpRequest, Protocol, attributes};
use crate::authz::config::error::ConfigError;
use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::header_mutations::{HeaderMutations, MessageKind, MutationMode};
use crate::authz::request::AuthzRequest;
use crate::authz::response::{AuthzResponse, CacheLifetime};
use crate::authz::transport::HttpVersion;
use crate::authz::verdict::{AuthzError, Denial, printable};

/// The protocol of `opa+http://HOST:PORT/v1/data/RULE`.
#[derive(Debug)]
pub(crate) struct Opa;

impl Protocol for Opa {
    fn url_form(&self) -> &'static str {
        "opa+http://HOST:PORT/v1/data/PATH"
    }

    fn needs_port(&self) -> bool {
        true
    }

    fn check_url(&self, url: &Uri) -> Result<(), ConfigError> {
        match url.path().strip_prefix(DATA_API) {
            Some(rule) if !rule.is_empty() => Ok(()),
            _ => Err(ConfigError::Url(
                "an OPA check URL's path begins with /v1/data/ and names a rule or package",
            )),
        }
    }

    fn http_version(&self) -> HttpVersion {
        HttpVersion::Http1
    }

    fn sends_body(&self) -> bool {
        true
    }

    fn takes_response_headers(&self) -> bool {
        false
    }

    fn encode(
        &self,
        uri: &Uri,
        request: &AuthzRequest<'_>,
        config: EncodeConfig<'_>,
    ) -> Result<Box<dyn EncodedRequest>, AuthzError> {
        Ok(Box::new(HttpRequest {
            request: encode(uri, request, config.sent),
            decode: |head: response::Parts, body: Bytes| decode(head.status, &body),
        }))
    }
}

fn encode(uri: &Uri, request: &AuthzRequest<'_>, sent: &SentHeaders) -> Request<Bytes> {
    let mut encoded = Request::new(json!({ "input": input(request, sent) }).to_string().into());
    *encoded.method_mut() = http::Method::POST;
    *encoded.uri_mut() = uri.clone();
    let json = HeaderValue::from_static("application/json");
    encoded.headers_mut().insert(header::CONTENT_TYPE, json);
    if let Some(trace) = request.trace() {
        trace.write(encoded.headers_mut());
    }
    encoded
}

/// The input of a policy.
pub(super) fn input(request: &AuthzRequest<'_>, sent: &SentHeaders) -> Value {
    let mut input = json!({
        "attributes": {
            "source": {
                "address": address(&request.client.ip().to_string(), request.client.port()),
            },
            "destination": { "address": address(request.to.host, request.to.port) },
            "request": { "http": {
                "id": request.request_id,
                "method": request.method.as_str(),
                "scheme": request.scheme,
                "host": request.host(),
                "path": request.path_and_query,
                "protocol": attributes::protocol(request),
                "headers": attributes::headers(request, sent),
                "size": attributes::size(request),
            } },
            "tlsSession": { "sni": request.sni.unwrap_or_default() },
            "contextExtensions": attributes::extensions(request),
        },
    });
    if let Some(body) = request.body {
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

/// The result of a policy that is an object. A field of another type does not allow.
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

/// Decodes a response. No result is OPA's "undefined", which denies.
///
/// # Errors
///
/// [`AuthzError::Status`] for anything but 200, [`AuthzError::Malformed`] for anything but JSON with or without a
/// result.
pub fn decode(status: StatusCode, body: &[u8]) -> Result<AuthzResponse, AuthzError> {
    if status != StatusCode::OK {
        return Err(AuthzError::Status(printable(&format!(
            "HTTP status {}",
            status.as_u16()
        ))));
    }
    let reply = serde_json::from_slice::<Reply>(body);
    let reply = reply.map_err(|_| AuthzError::Malformed("not a JSON object of OPA's data API"))?;
    Ok(match reply.result {
        None => denied("the policy is undefined"),
        Some(Value::Bool(true)) => AuthzResponse::allow(HeaderMutations::default()),
        Some(Value::Bool(false)) => denied(""),
        Some(result @ Value::Object(_)) => match serde_json::from_value::<Ruling>(result) {
            Ok(ruling) => ruling.into_response(),
            Err(_) => denied("a field of the policy's result has another type"),
        },
        Some(_) => denied("the policy's result is neither boolean nor object"),
    })
}

fn denied(reason: &str) -> AuthzResponse {
    AuthzResponse::deny(Denial::new(StatusCode::FORBIDDEN, reason))
}

impl Ruling {
    fn into_response(self) -> AuthzResponse {
        let lifetime = self
            .cache_control
            .as_deref()
            .map(CacheLifetime::parse)
            .unwrap_or_default();
        let response = match self.allow {
            Some(true) => AuthzResponse::allow(self.changes()),
            Some(false) => AuthzResponse::deny(self.denial("")),
            None => AuthzResponse::deny(self.denial("the policy's result has no allow")),
        };
        response.with_lifetime(lifetime)
    }

    fn changes(&self) -> HeaderMutations {
        let mut changes = HeaderMutations::default();
        for name in &self.request_headers_to_remove {
            changes.remove(name.as_bytes());
        }
        for (name, value) in &self.headers {
            changes.add(
                MessageKind::Request,
                name.as_bytes(),
                value.as_bytes(),
                MutationMode::Set,
            );
        }
        for (name, value) in &self.response_headers_to_add {
            changes.add(
                MessageKind::Response,
                name.as_bytes(),
                value.as_bytes(),
                MutationMode::Append,
            );
        }
        changes
    }

    fn denial(self, default_reason: &str) -> Denial {
        let status = self
            .http_status
            .and_then(|status| StatusCode::from_u16(status).ok());
        let reason = self.reason.as_deref().unwrap_or(default_reason);
        let mut denial = Denial::new(status.unwrap_or(StatusCode::FORBIDDEN), reason);
        for (name, value) in self.headers {
            denial.add(name.as_bytes(), value.as_bytes());
        }
        denial.body = self.body.unwrap_or_default().into();
        denial
    }
}

/// The path of OPA's data API.
pub(super) const DATA_API: &str = "/v1/data/";
