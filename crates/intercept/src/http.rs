//! HTTP on a client's connection: framing, the exchange of a request and its response, and the switch to WebSocket.

pub(crate) mod client_connection;
pub(crate) mod error_response;
pub(crate) mod exchange;
pub(crate) mod framing;
pub(crate) mod hop_by_hop;
pub(crate) mod http2_stream;
pub(crate) mod http_server;
pub(crate) mod in_flight;
pub(crate) mod response_body;
pub(crate) mod stall_monitor;
pub(crate) mod websocket;
