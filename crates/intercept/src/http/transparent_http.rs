//! Plain HTTP that was redirected to us: each request says by its Host where it goes.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;

use crate::http::error_response::Form;
use crate::audit::Record;
use crate::http::response_body::Answer;
use crate::http::client_connection::Client;
use crate::http::exchange::{Exchange, Switched};
use crate::http::http_server::{self, Answering, First, Slot, put, take};
use crate::request::target::{Named, asked};
use crate::request::refusal::Refusal;
use crate::state::Site;
use crate::http::websocket;
use crate::stream::prefixed::Wire;

#[derive(Clone)]
struct Origin {
    site: Arc<Site>,
    client: Arc<Client>,
    /// The port that the client was going to.
    port: u16,
    switched: Slot<Switched>,
}

/// Serves a connection to its end.
pub(crate) async fn serve(site: &Arc<Site>, client: &Arc<Client>, wire: Wire, port: u16) {
    let service = Origin {
        site: Arc::clone(site),
        client: Arc::clone(client),
        port,
        switched: Slot::default(),
    };
    let Some((wire, service)) = http_server::http1(site, client, wire, service, First::Awaited).await
    else {
        return;
    };
    match take(&service.switched) {
        None => http_server::finish(wire).await,
        Some(switched) => websocket::carry(wire, switched).await,
    }
}

impl Service<Request<Incoming>> for Origin {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await) })
    }
}

impl Origin {
    async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let to = asked(&parts, 80).and_then(|to| {
            let to = to.ok_or_else(|| Refusal::bad_request("the request names no host"))?;
            match to.port == self.port {
                true => Ok(to),
                false => Err(Refusal::names(
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
                let record = Record::begin(&self.site.metrics, &self.client, method);
                return Form::of(&parts.headers).refuse(&refusal, record);
            }
        };
        let exchange = Exchange {
            site: &self.site,
            client: &self.client,
            named: &Arc::new(Named::plain(to, None)),
        };
        let mut switched = None;
        let request = Request::from_parts(parts, body);
        let answer = exchange.answer(request, &mut switched).await;
        if switched.is_some() {
            put(&self.switched, switched);
        }
        answer
    }
}
