//! A client of the admin endpoint.

use std::io::{self, ErrorKind};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use peername_observe::admin::AdminAddr;
use peername_observe::escape::escape_into;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Requests to one admin endpoint. Each has a connection of its own.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient(pub(crate) AdminAddr);

impl AdminClient {
    /// Asks whether clients should be sent to the process.
    ///
    /// # Errors
    ///
    /// The endpoint can't be reached, or the process is not ready, with its reason.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        self.request(Method::GET, "/readyz").await?;
        Ok(())
    }

    /// Makes a request on a connection of its own.
    ///
    /// # Errors
    ///
    /// The endpoint can't be reached, does not answer, or the status is not 200; with its reason.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
    ) -> anyhow::Result<Response<Incoming>> {
        timeout(ANSWERS_WITHIN, self.ask(method, path))
            .await
            .unwrap_or_else(|_| Err(self.explain_silence()))
    }

    async fn ask(&self, method: Method, path: &str) -> anyhow::Result<Response<Incoming>> {
        let context = format!("--admin {}: {method} {path}", self.0);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .body(Empty::new())?;
        let response = match &self.0 {
            AdminAddr::Tcp(addr) => {
                let connected = TcpStream::connect(addr).await;
                exchange(connected.map_err(|error| self.explain(&error))?, request).await
            }
            AdminAddr::Unix(path) => {
                let connected = UnixStream::connect(path).await;
                exchange(connected.map_err(|error| self.explain(&error))?, request).await
            }
        };
        let response = response.with_context(|| context.clone())?;
        match response.status() {
            // peername serves HTML at `/` only, which is not requested: another server has answered.
            status if is_html(&response) => {
                bail!("{context}: {status}: this is no admin endpoint of peername")
            }
            StatusCode::OK => Ok(response),
            status => bail!("{context}: {status}: {}", reason(response).await),
        }
    }

    fn explain_silence(&self) -> anyhow::Error {
        anyhow!(
            "--admin {}: no answer within {ANSWERS_WITHIN:?}; is that peername's --admin, and does the process run? \
             `pgrep -a peername`",
            self.0
        )
    }

    /// The error of connect(2), with advice if nothing listens.
    fn explain(&self, error: &io::Error) -> anyhow::Error {
        let advice = match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                "; is --admin set in that process? `pgrep -a peername` shows its options"
            }
            _ => "",
        };
        let why = format!("--admin {}: connect(2): {error}{advice}", self.0);
        io::Error::new(error.kind(), why).into()
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

fn is_html(response: &Response<Incoming>) -> bool {
    response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
}

/// Reads the reason in the body of an error response, escaped and in one line.
async fn reason(response: Response<Incoming>) -> String {
    let body = Limited::new(response.into_body(), MAX_REASON)
        .collect()
        .await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    let mut reason = String::new();
    for word in text.split(u8::is_ascii_whitespace) {
        escape_into(&mut reason, word, MAX_REASON, b"");
        reason.push(' ');
    }
    reason.trim().to_owned()
}

/// Longer than the two seconds for which the endpoint waits for its workers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an error response that are read.
const MAX_REASON: usize = 1024;
