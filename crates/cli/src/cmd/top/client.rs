//! A client of the admin endpoint.

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use peername_observe::admin::AdminAddr;
use peername_observe::admin::events::StatusEvent;
use peername_observe::escape::escape_into;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Requests to one admin endpoint. Each has a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct AdminClient(AdminAddr);

impl AdminClient {
    pub(super) fn new(addr: AdminAddr) -> Self {
        Self(addr)
    }

    /// Whether the endpoint accepts changes: over a Unix socket only.
    pub(super) fn may_change(&self) -> bool {
        matches!(self.0, AdminAddr::Unix(_))
    }

    /// Opens the stream of events.
    ///
    /// # Errors
    ///
    /// The endpoint can't be reached, or it refuses.
    pub(super) async fn events(&self) -> anyhow::Result<EventStream> {
        let body = self.request(Method::GET, "/events").await?.into_body();
        Ok(EventStream {
            body,
            received: Vec::new(),
        })
    }

    /// Closes a connection.
    ///
    /// # Errors
    ///
    /// The endpoint can't be reached, or no connection has this id any more.
    pub(super) async fn close(&self, id: u64) -> anyhow::Result<()> {
        let path = format!("/connections/{id}");
        self.request(Method::DELETE, &path).await?;
        Ok(())
    }

    async fn request(&self, method: Method, path: &str) -> anyhow::Result<Response<Incoming>> {
        let what = format!("--admin {}: {method} {path}", self.0);
        let connect = || format!("--admin {}: connect(2)", self.0);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .body(Empty::new())?;
        let response = match &self.0 {
            AdminAddr::Tcp(addr) => {
                exchange(
                    TcpStream::connect(addr).await.with_context(connect)?,
                    request,
                )
                .await
            }
            AdminAddr::Unix(path) => {
                exchange(
                    UnixStream::connect(path).await.with_context(connect)?,
                    request,
                )
                .await
            }
        };
        let response = response.with_context(|| what.clone())?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => bail!("{what}: {status}: {}", reason(response).await),
        }
    }
}

async fn exchange<IO>(io: IO, request: Request<Empty<Bytes>>) -> hyper::Result<Response<Incoming>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// The line of text that an error comes with.
async fn reason(response: Response<Incoming>) -> String {
    let body = Limited::new(response.into_body(), MAX_REASON)
        .collect()
        .await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    let words = text.split(u8::is_ascii_whitespace).map(|word| {
        let mut escaped = String::new();
        escape_into(&mut escaped, word, MAX_REASON, b"");
        escaped
    });
    words.collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// An open stream of events.
#[derive(Debug)]
pub(super) struct EventStream {
    body: Incoming,
    received: Vec<u8>,
}

impl EventStream {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// The connection failed, or this is no stream of events.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<StatusEvent>> {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.received.drain(..end + 2).collect();
                if let Some(data) = block.strip_prefix(b"data: ") {
                    let event = serde_json::from_slice(data);
                    return Ok(Some(event.context(OTHER_VERSION)?));
                }
                continue;
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            if let Ok(data) = frame.context("GET /events: read(2)")?.into_data() {
                self.received.extend_from_slice(&data);
            }
            ensure!(self.received.len() <= MAX_EVENT, OTHER_VERSION);
        }
    }
}

const OTHER_VERSION: &str =
    "GET /events: no event of this version of peername; use the version that serves the endpoint";
/// Far more than an event has.
const MAX_EVENT: usize = 4 << 20;
const MAX_REASON: usize = 1024;
