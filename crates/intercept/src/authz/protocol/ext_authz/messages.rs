//! The messages of ext_authz, with the fields that are sent or read.
//!
//! The names and the numbers of the fields are Envoy's: `envoy/service/auth/v3/external_auth.proto` and
//! `attribute_context.proto`, `envoy/config/core/v3/address.proto` and `base.proto`, and `google/rpc/status.proto`.
//! Fields that are not listed are skipped when a message is decoded (proto3).

use std::collections::HashMap;

use prost::{Enumeration, Message};

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    pub(super) destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<Request>,
    #[prost(map = "string, string", tag = "10")]
    pub(super) context_extensions: HashMap<String, String>,
    #[prost(message, optional, tag = "12")]
    pub(super) tls_session: Option<TlsSession>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Peer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Address {
    #[prost(message, optional, tag = "1")]
    pub(super) socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddress {
    #[prost(string, tag = "2")]
    pub(super) address: String,
    /// Optional because it is part of a oneof: 0 is sent, too.
    #[prost(uint32, optional, tag = "3")]
    pub(super) port_value: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequest {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(map = "string, string", tag = "3")]
    pub(super) headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    pub(super) path: String,
    #[prost(string, tag = "5")]
    pub(super) host: String,
    #[prost(string, tag = "6")]
    pub(super) scheme: String,
    #[prost(int64, tag = "9")]
    pub(super) size: i64,
    #[prost(string, tag = "10")]
    pub(super) protocol: String,
    #[prost(string, tag = "11")]
    pub(super) body: String,
    #[prost(bytes = "vec", tag = "12")]
    pub(super) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TlsSession {
    #[prost(string, tag = "1")]
    pub(super) sni: String,
}

/// The response of an ext_authz service.
#[derive(Clone, PartialEq, Message)]
pub struct CheckResponse {
    /// The decision: 0 (OK) allows the request.
    #[prost(message, repeated, tag = "1")]
    pub status: Vec<Status>,
    /// The request is denied.
    #[prost(message, repeated, tag = "2")]
    pub denied_response: Vec<DeniedHttpResponse>,
    /// The request is allowed, with these changes.
    #[prost(message, repeated, tag = "3")]
    pub ok_response: Vec<OkHttpResponse>,
    /// Metadata of the response.
    #[prost(message, optional, tag = "4")]
    pub dynamic_metadata: Option<Metadata>,
    /// The service calls its own response an error.
    #[prost(message, repeated, tag = "5")]
    pub error_response: Vec<DeniedHttpResponse>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// A status code of gRPC.
    #[prost(int32, repeated, tag = "1")]
    pub code: Vec<i32>,
    /// The reason, for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The response that the client gets.
#[derive(Clone, PartialEq, Message)]
pub struct DeniedHttpResponse {
    /// The status of HTTP.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Headers that are added.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// The body.
    #[prost(string, tag = "3")]
    pub body: String,
}

/// A status of HTTP.
#[derive(Clone, PartialEq, Message)]
pub struct HttpStatus {
    /// Its code. In the protocol it is an enumeration with the codes as its values, which is encoded as an integer.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// Changes of a request that is allowed.
#[derive(Clone, PartialEq, Message)]
pub struct OkHttpResponse {
    /// Headers of the request.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// Headers that are removed from the request.
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    /// Headers of the response.
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
    /// Changes of the query, of which only the presence is read.
    #[prost(message, repeated, tag = "7")]
    pub query_parameters_to_set: Vec<()>,
    /// Parameters that are removed from the query.
    #[prost(string, repeated, tag = "8")]
    pub query_parameters_to_remove: Vec<String>,
}

/// A header, and how it is added.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValueOption {
    /// The header.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Deprecated in favour of `append_action`, but the field that most services set. (`google.protobuf.BoolValue`)
    #[prost(message, optional, tag = "2")]
    pub append: Option<bool>,
    /// How the header is added to one of the same name.
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// A name and a value.
#[derive(Clone, PartialEq, Message)]
pub struct Header {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value, if it is UTF-8.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value otherwise.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

/// How a header is added to one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    /// Both are kept.
    AppendIfExistsOrAdd = 0,
    /// The existing one is kept.
    AddIfAbsent = 1,
    /// The existing one is replaced.
    OverwriteIfExistsOrAdd = 2,
    /// The existing one is replaced; without one, nothing is added.
    OverwriteIfExists = 3,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// Its fields.
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, MetadataValue>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct MetadataValue {
    /// The value, if it is a string.
    #[prost(string, optional, tag = "3")]
    pub string: Option<String>,
}
