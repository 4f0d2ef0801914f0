//! OPA's data API: `POST /v1/data/…` with an `input`, answered by a `result`.
//!
//! The input has the shape that OPA's Envoy plugin gives it, and the result may have the fields that the plugin reads, so
//! that one policy serves both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Formatter};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, StatusCode, Uri};
use peername_observe::escape::printable;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::{PreparedCheck, Protocol, ProtocolConfig, attributes};
use crate::authz::config::error::ConfigError;
use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::header_mutations::{HeaderMutations, MessageKind, MutationMode};
use crate::authz::request::AuthzRequest;
use crate::authz::response::{AuthzResponse, CacheLifetime};
use crate::authz::verdict::{AuthzError, Denial};
use crate::http_client::{HttpClient, HttpVersion};

/// The protocol of `opa+http://HOST:PORT/v1/data/RULE`.
pub(crate) static OPA: Protocol = Protocol {
    name: "OPA's data API",
    scheme: "opa+http",
    tls_scheme: "opa+https",
    url_form: "opa+http://HOST:PORT/v1/data/PATH",
    needs_port: true,
    check_url,
    http_version: HttpVersion::Http1,
    sends_body: true,
    takes_response_headers: false,
    prepare,
};

fn check_url(url: &Uri) -> Result<(), ConfigError> {
    match url.path().strip_prefix(DATA_API) {
        Some(rule) if !rule.is_empty() => Ok(()),
        _ => Err(ConfigError::Url(
            "an OPA check URL's path begins with /v1/data/ and names a rule or package",
        )),
    }
}

fn prepare<'a>(
    client: &'a HttpClient,
    uri: &'a Uri,
    request: &AuthzRequest<'_>,
    config: &ProtocolConfig,
) -> Result<PreparedCheck<'a>, AuthzError> {
    let encoded = encode(uri, request, &config.sent);
    Ok(Box::new(move |_| {
        Box::pin(async move {
            let (head, body) = client.exchange(&encoded).await?;
            decode(head.status, &body, &name(uri))
        })
    }))
}

/// The name in Rego of a URL's rule or package: `data.egress.allow`.
fn name(uri: &Uri) -> String {
    let path = uri.path().strip_prefix(DATA_API).unwrap_or_default();
    format!("data.{}", path.replace('/', "."))
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
            "destination": { "address": address(&request.to.host.to_string(), request.to.port) },
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
        input["attributes"]["request"]["http"]["body"] = attributes::text(&body.bytes).into();
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

/// A policy's result that is an object. A field of another type than here denies the request.
#[derive(Deserialize)]
struct Ruling {
    #[serde(alias = "allowed")]
    allow: Option<bool>,
    reason: Option<String>,
    #[serde(default)]
    headers: Headers,
    #[serde(default)]
    response_headers_to_add: Headers,
    #[serde(default)]
    request_headers_to_remove: Vec<String>,
    body: Option<String>,
    #[serde(alias = "status")]
    http_status: Option<u16>,
    cache_control: Option<String>,
    #[serde(default)]
    dynamic_metadata: DynamicMetadata,
    #[serde(default)]
    query_parameters_to_set: Map<String, Value>,
    #[serde(default)]
    query_parameters_to_remove: Vec<String>,
}

/// Headers, in each shape that OPA's Envoy plugin accepts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Headers {
    Object(BTreeMap<String, HeaderValues>),
    List(Vec<BTreeMap<String, HeaderValues>>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderValues {
    One(String),
    Several(Vec<String>),
}

#[derive(Default, Deserialize)]
struct DynamicMetadata {
    cache_control: Option<String>,
}

fn parse_reply(body: &[u8]) -> serde_json::Result<Reply> {
    serde_json::from_slice::<UniqueNames>(body)?;
    serde_json::from_slice(body)
}

/// Decodes a response about the rule with this name. No result is OPA's "undefined", which denies.
///
/// # Errors
///
/// [`AuthzError::Status`] unless the status is 200; [`AuthzError::Malformed`]: the body is not a JSON object, has a name twice,
/// or asks for another query.
pub fn decode(status: StatusCode, body: &[u8], rule: &str) -> Result<AuthzResponse, AuthzError> {
    if status != StatusCode::OK {
        return Err(AuthzError::Status(printable(&format!(
            "HTTP status {}",
            status.as_u16()
        ))));
    }
    let reply = parse_reply(body).map_err(|_| {
        AuthzError::Malformed("not a JSON object of OPA's data API, or a name occurs twice in it")
    })?;
    match reply.result {
        // The reason names the rule, which may be misspelt.
        None => Ok(denied(&format!("{rule} is undefined"))),
        Some(Value::Bool(true)) => AuthzResponse::allow(HeaderMutations::default()),
        Some(Value::Bool(false)) => Ok(denied("")),
        Some(Value::Object(result)) if has_both_names(&result) => Err(AuthzError::Malformed(
            "a result with allow and allowed, or with http_status and status",
        )),
        Some(result @ Value::Object(_)) => match serde_json::from_value::<Ruling>(result) {
            Ok(ruling) => ruling.into_response(),
            Err(_) => Ok(denied("a field of the policy's result has another type")),
        },
        Some(_) => Ok(denied("the policy's result is neither boolean nor object")),
    }
}

/// Whether a result has a field under both of its names, which may contradict each other.
fn has_both_names(result: &Map<String, Value>) -> bool {
    [["allow", "allowed"], ["http_status", "status"]]
        .iter()
        .any(|names| names.iter().all(|name| result.contains_key(*name)))
}

/// A denial by the policy, with the reason for the client and the log.
pub(super) fn denied(reason: &str) -> AuthzResponse {
    AuthzResponse::deny(Denial::new(StatusCode::FORBIDDEN, reason))
}

impl Ruling {
    fn into_response(self) -> Result<AuthzResponse, AuthzError> {
        let lifetime = self
            .cache_control
            .as_ref()
            .or(self.dynamic_metadata.cache_control.as_ref())
            .map(|directives| CacheLifetime::parse(directives))
            .unwrap_or_default();
        let response = match self.allow {
            Some(true) if self.changes_query() => {
                return Err(AuthzError::Malformed(
                    "an allow for a changed query, which is not supported",
                ));
            }
            Some(true) => AuthzResponse::allow(self.changes())?,
            Some(false) => AuthzResponse::deny(self.denial("")),
            None => AuthzResponse::deny(self.denial("the policy's result has no allow")),
        };
        Ok(response.with_lifetime(lifetime))
    }

    fn changes_query(&self) -> bool {
        !self.query_parameters_to_set.is_empty() || !self.query_parameters_to_remove.is_empty()
    }

    fn changes(&self) -> HeaderMutations {
        let mut changes = HeaderMutations::default();
        for name in &self.request_headers_to_remove {
            changes.remove(name.as_bytes());
        }
        let mut names = BTreeSet::new();
        for Header { name, value } in self.headers.iter() {
            let mode = match names.insert(name.to_ascii_lowercase()) {
                true => MutationMode::Set,
                false => MutationMode::Append,
            };
            changes.add(
                MessageKind::Request,
                name.as_bytes(),
                value.as_bytes(),
                mode,
            );
        }
        for Header { name, value } in self.response_headers_to_add.iter() {
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
        for Header { name, value } in self.headers.iter() {
            denial.add_header(name.as_bytes(), value.as_bytes());
        }
        denial.body = self.body.unwrap_or_default().into();
        denial
    }
}

/// A header of a result.
struct Header<'a> {
    name: &'a str,
    value: &'a str,
}

impl Headers {
    fn iter(&self) -> impl Iterator<Item = Header<'_>> {
        let objects = match self {
            Self::Object(object) => std::slice::from_ref(object),
            Self::List(objects) => objects,
        };
        objects.iter().flatten().flat_map(|(name, values)| {
            let values = match values {
                HeaderValues::One(value) => std::slice::from_ref(value),
                HeaderValues::Several(values) => values,
            };
            values.iter().map(move |value| Header { name, value })
        })
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// JSON in which no object has a name twice. Of two values a map keeps the last, and another program may read the first.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

macro_rules! accept_scalars {
    ($($method:ident($scalar:ty),)+) => {
        $(fn $method<E>(self, _: $scalar) -> Result<Self, E> {
            Ok(self)
        })+
    };
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Self;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    accept_scalars! {
        visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str),
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, Self)) = members.next_entry::<String, Self>()? {
            if !names.insert(name) {
                return Err(A::Error::custom("a name occurs twice"));
            }
        }
        Ok(self)
    }
}

/// The path of OPA's data API.
pub(super) const DATA_API: &str = "/v1/data/";
