//! Plain HTTP on a redirected connection: each request names its target in its Host header.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;

use super::client_connection::ClientConnection;
use super::error_response::ErrorFormat;
use super::exchange::Exchange;
use super::http_server::{self, FirstRequest, Http1Opening, ResponseFuture};
use super::in_flight::InFlightRecord;
use super::response_body::ResponseBody;
use super::switch_slot::SwitchSlot;
use super::websocket::{self, Switched};
use crate::request::refusal::Refusal;
use crate::request::target::{RequestTarget, requested_host};
use crate::state::InterceptState;
use crate::stream::prefixed::ClientStream;

#[derive(Clone)]
struct TransparentHttp {
    state: Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    /// The port of the original destination.
    port: u16,
    switched: SwitchSlot<Switched>,
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    state: &Arc<InterceptState>,
    connection: &Arc<ClientConnection>,
    stream: ClientStream,
    port: u16,
) {
    let service = TransparentHttp {
        state: Arc::clone(state),
        connection: Arc::clone(connection),
        port,
        switched: SwitchSlot::default(),
    };
    let opening = Http1Opening {
        first: FirstRequest::Awaited,
        target: None,
    };
    let served = http_server::serve_http1(state, connection, stream, service, opening).await;
    let Some((stream, service)) = served else {
        return;
    };
    match service.switched.take() {
        None => http_server::linger_and_close(stream).await,
        Some(switched) => websocket::relay(stream, switched).await,
    }
}

impl Service<Request<Incoming>> for TransparentHttp {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let this = self.clone();
        Box::pin(async move { Ok(this.respond(request).await) })
    }
}

impl TransparentHttp {
    async fn respond(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let to = requested_host(&parts, 80).and_then(|to| {
            let to = to.ok_or_else(|| Refusal::bad_request("the request names no host"))?;
            match to.port == self.port {
                true => Ok(to),
                false => Err(Refusal::name_mismatch(
                    http::StatusCode::FORBIDDEN,
                    format!(
                        "the connection is for port {} and the request for {to}",
                        self.port
                    ),
                )),
            }
        });
        let to = match to {
            Ok(to) => to,
            Err(refusal) => {
                let method = parts.method.as_str();
                let record = InFlightRecord::begin(&self.state, &self.connection, method);
                return ErrorFormat::from_request(&parts.headers).refuse(&refusal, record);
            }
        };
        let exchange = Exchange {
            state: &self.state,
            connection: &self.connection,
            target: &Arc::new(RequestTarget::plain(to, None)),
        };
        let mut switched = None;
        let request = Request::from_parts(parts, body);
        let response = exchange.respond(request, &mut switched).await;
        if let Some(switched) = switched {
            self.switched.fill(switched);
        }
        response
    }
}
