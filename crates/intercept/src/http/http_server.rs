//! The HTTP server for a connection inside a tunnel, or redirected to the proxy.

use std::convert::Infallible;
use std::error::Error;
use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client_connection::ClientConnection;
use super::error_response::ErrorFormat;
use super::exchange::Exchange;
use super::framing::field_counter::MAX_CONCURRENT_STREAMS;
use super::framing::watched_stream::{SharedFraming, WatchedStream};
use super::framing::{FramingError, MAX_REQUEST_HEAD, MAX_REQUEST_HEADERS};
use super::http2_stream::Http2Stream;
use super::in_flight::InFlightRecord;
use super::response_body::ResponseBody;
use super::websocket::{self, Switched};
use crate::request::refusal::Refusal;
use crate::request::target::{RequestTarget, requested_host};
use crate::state::InterceptState;
use crate::stream::prefixed::PrefixedStream;

/// Answers the requests of one connection.
#[derive(Clone)]
pub(crate) struct HttpServer {
    state: Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    switched: SwitchSlot<Switched>,
}

/// The target of the requests of an HTTP/1 connection.
pub(crate) enum ServedTarget {
    /// The connection's target, for all of them.
    Connection(Arc<RequestTarget>),
    /// The host that each request names, at the port of the original destination.
    ByHost { port: u16 },
}

/// Filled by a request that switches its connection's protocol, emptied once hyper has given the connection back.
pub(crate) type SwitchSlot<T> = Arc<Mutex<Option<T>>>;

pub(crate) type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl ServedTarget {
    /// The target of all requests, if it does not depend on the request.
    fn fixed(&self) -> Option<&Arc<RequestTarget>> {
        match self {
            Self::Connection(target) => Some(target),
            Self::ByHost { .. } => None,
        }
    }

    fn for_request(&self, parts: &Parts) -> Result<Arc<RequestTarget>, Refusal> {
        let port = match self {
            Self::Connection(target) => return Ok(Arc::clone(target)),
            Self::ByHost { port } => *port,
        };
        let to = requested_host(parts, 80)?
            .ok_or_else(|| Refusal::bad_request("the request names no host"))?;
        if to.port != port {
            let detail = format!("the connection is for port {port} and the request for {to}");
            return Err(Refusal::name_mismatch(StatusCode::FORBIDDEN, detail));
        }
        Ok(Arc::new(RequestTarget::plain(to)))
    }
}

impl HttpServer {
    pub(crate) fn new(state: &Arc<InterceptState>, connection: &Arc<ClientConnection>) -> Self {
        Self {
            state: Arc::clone(state),
            connection: Arc::clone(connection),
            switched: SwitchSlot::default(),
        }
    }

    /// Serves HTTP/1, and the protocol to which a request may switch.
    pub(crate) async fn serve_http1<T>(self, io: T, target: ServedTarget)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let respond = |request| self.respond_by_host(&target, request);
        let ended = run_http1(&self.state, &self.connection, io, target.fixed(), respond).await;
        let Some(io) = ended else {
            return;
        };
        let switched = self.switched.lock().take();
        match switched {
            Some(switched) => websocket::relay(io, switched).await,
            None => linger_and_close(io).await,
        }
    }

    /// Serves HTTP/2.
    pub(crate) async fn serve_http2<T>(self, io: T, target: Arc<RequestTarget>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = Http2Stream::new(io, |error: FramingError| {
            self.record_unanswered(&target, &error.into());
        });
        let service = {
            let (server, target) = (self.clone(), Arc::clone(&target));
            service_fn(move |request| server.respond(Arc::clone(&target), request))
        };
        let served = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .enable_connect_protocol()
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .max_header_list_size(MAX_REQUEST_HEAD as u32)
            .keep_alive_interval(PING_INTERVAL)
            .serve_connection(TokioIo::new(io), service);
        let mut served = pin!(served);
        let ended = run(
            &self.state,
            &self.connection,
            None,
            &mut served,
            |served, cx| served.as_mut().poll(cx),
            |served| served.as_mut().graceful_shutdown(),
        );
        // Errors of single streams are in the audit lines of their requests.
        if let Some(Err(error)) = ended.await
            && let Some(error) = error.source().and_then(|source| source.downcast_ref())
            && h2::Error::is_library(error)
        {
            let detail = format!("the client's HTTP/2 is invalid: {error}");
            self.record_unanswered(&target, &Refusal::bad_request(detail));
        }
    }

    /// Records a refusal by h2, which the service does not see.
    fn record_unanswered(&self, target: &Arc<RequestTarget>, refusal: &Refusal) {
        let mut record = InFlightRecord::begin(&self.state, &self.connection, "");
        record.set_target(target);
        record.set_unanswered(refusal);
    }

    /// Answers a request for the connection's target, or for the host that it names.
    fn respond_by_host(&self, target: &ServedTarget, request: Request<Incoming>) -> ResponseFuture {
        let (parts, body) = request.into_parts();
        match target.for_request(&parts) {
            Ok(target) => self.respond(target, Request::from_parts(parts, body)),
            Err(refusal) => {
                let method = parts.method.as_str();
                let mut record = InFlightRecord::begin(&self.state, &self.connection, method);
                record.set_first_named(&parts);
                let format = ErrorFormat::from_request(&parts.headers);
                Box::pin(ready(Ok(format.refuse(&refusal, record))))
            }
        }
    }

    fn respond(&self, target: Arc<RequestTarget>, request: Request<Incoming>) -> ResponseFuture {
        let this = self.clone();
        Box::pin(async move {
            let exchange = Exchange {
                state: &this.state,
                connection: &this.connection,
                target: &target,
                user: None,
            };
            let mut switched = None;
            let response = exchange.respond(request, &mut switched).await;
            if let Some(switched) = switched {
                *this.switched.lock() = Some(switched);
            }
            Ok(response)
        })
    }
}

/// Runs a connection to its end, with a graceful shutdown once it is idle or the proxy drains; see [`wait_drain`]. `None` if
/// the connection then does not end within [`LINGER`] after its last exchange.
async fn run<C, T>(
    state: &InterceptState,
    connection: &ClientConnection,
    framing: Option<&SharedFraming>,
    served: &mut C,
    poll: impl Fn(&mut C, &mut Context<'_>) -> Poll<T>,
    shut_down: impl Fn(&mut C),
) -> Option<T> {
    let wait_idle = || {
        let config = &state.config;
        connection
            .exchanges
            .wait_idle(config.idle_timeout, config.shortest_stall())
    };
    let mut idle = pin!(wait_idle());
    let begun = connection.exchanges.total_begun();
    let mut drain = pin!(wait_drain(state, connection, framing, begun));
    let (mut is_draining, mut cut_at) = (false, None);
    loop {
        tokio::select! {
            // What has arrived is read before the drain looks for the head of a request.
            biased;
            ended = poll_fn(|cx| poll(served, cx)) => return Some(ended),
            () = &mut drain, if !is_draining => is_draining = true,
            () = &mut idle => {
                cut_at.get_or_insert_with(|| Instant::now() + LINGER);
                // A request that came in this moment is answered, and watched for stalls.
                idle.set(wait_idle());
            }
            () = sleep_until(cut_at.unwrap_or_else(Instant::now)), if cut_at.is_some() => {
                if connection.exchanges.is_idle() {
                    return None;
                }
                cut_at = Some(Instant::now() + LINGER);
            }
        }
        shut_down(served);
    }
}

/// Waits until a connection has to end because the proxy drains, which is after the first request beyond the `begun` ones, and
/// after the request of HTTP/1 whose head is on its way. A client that has just connected sends its request at any moment.
/// hyper would close the connection before that, and what the client sends would be reset.
async fn wait_drain(
    state: &InterceptState,
    connection: &ClientConnection,
    framing: Option<&SharedFraming>,
    mut begun: u64,
) {
    state.wait_draining().await;
    // The runtime learns meanwhile which sockets are readable.
    yield_now().await;
    let exchanges = &connection.exchanges;
    if framing.is_some_and(|framing| framing.lock().awaits_head()) {
        begun = exchanges.total_begun();
    }
    let _ = timeout(REQUEST_GRACE, exchanges.wait_begun_after(begun)).await;
}

/// Runs HTTP/1 until the connection ends or is handed over to another protocol. Returns the connection with the bytes that
/// hyper has read and not parsed; `None` after an error or a timeout.
///
/// `target` is the target of all requests. `None` if each request names its own: then the first request has to come within the
/// opening timeout. With a target the first request, like any other, may take the idle timeout: clients open tunnels to use
/// them later.
pub(crate) async fn run_http1<T>(
    state: &Arc<InterceptState>,
    connection: &Arc<ClientConnection>,
    io: T,
    target: Option<&Arc<RequestTarget>>,
    respond: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync,
) -> Option<PrefixedStream<T>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let framing = SharedFraming::new(Arc::clone(connection));
    let awaits_first_request = target.is_none();
    if awaits_first_request {
        framing.lock().expect_head();
    }
    let io = WatchedStream::new(io, framing.clone());
    let service = service_fn(|request: Request<Incoming>| -> ResponseFuture {
        let verdict = framing.lock().next_verdict();
        let Err(error) = verdict else {
            return respond(request);
        };
        // hyper got a substitute for the invalid head or framing.
        let (parts, _) = request.into_parts();
        let mut record = InFlightRecord::begin(state, connection, parts.method.as_str());
        record.set_uri(&parts.uri);
        if let Some(target) = target {
            record.set_target(target);
        } else {
            record.set_first_named(&parts);
        }
        let format = ErrorFormat::for_proxy_request(&parts.headers);
        Box::pin(ready(Ok(format.refuse(&error.into(), record))))
    });
    let mut served = http1::Builder::new()
        // `run` ends idle connections, and `wait_head_timeout` those with slow heads.
        .header_read_timeout(None)
        .max_header_size(MAX_REQUEST_HEAD)
        .max_headers(MAX_REQUEST_HEADERS)
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(io), service);
    let ended = run(
        state,
        connection,
        Some(&framing),
        &mut served,
        |served, cx| served.poll_without_shutdown(cx),
        |served| Pin::new(served).graceful_shutdown(),
    );
    let ended = tokio::select! {
        ended = ended => ended?,
        () = wait_head_timeout(&framing, connection, state.config.opening_timeout) => {
            state.count_failed_connection(connection.info.peer, "head_timeout");
            return None;
        }
    };
    if let Err(error) = ended {
        if error.is_parse() {
            state.count_failed_connection(connection.info.peer, "bad_request");
            // The monitor passed bytes that may be no HTTP, after a request to switch protocols. hyper has answered them
            // itself.
            let mut record = InFlightRecord::begin(state, connection, "");
            if let Some(target) = target {
                record.set_target(target);
            }
            record.set_refused(&Refusal::bad_request(error.to_string()));
        }
        return None;
    }
    let parts = served.into_parts();
    let (io, replaced) = parts.io.into_inner().into_parts();
    Some(PrefixedStream::new(io, [parts.read_buf, replaced].concat()))
}

/// Returns once the head of a request has been on its way for too long. The head of a pipelined request may have to
/// wait while the request before it is answered, so the limit starts again after that response.
async fn wait_head_timeout(heads: &SharedFraming, connection: &ClientConnection, limit: Duration) {
    loop {
        heads.wait_head_timeout(limit).await;
        if connection.exchanges.is_idle() {
            return;
        }
        sleep(limit).await;
    }
}

/// Closes a connection after its last response (a lingering close). What the client is still sending is
/// read for a moment: closing on unread data sends RST, which would take the response with it.
pub(crate) async fn linger_and_close<T>(mut io: PrefixedStream<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let drained = async {
        if io.shutdown().await.is_err() {
            return;
        }
        let mut rest = [0; 4096];
        for _ in 0..MAX_LINGER_READS {
            if !matches!(io.read(&mut rest).await, Ok(1..)) {
                break;
            }
        }
    };
    // The connection is closed afterwards in any case.
    let _ = timeout(LINGER, drained).await;
}

/// The interval of pings. hyper closes the connection of a client that does not acknowledge one within 20 s.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// How long a drain waits for a connection's request: for a lost packet to be sent again, and a slow client.
const REQUEST_GRACE: Duration = Duration::from_secs(2);
/// How long a connection may go on after its last exchange.
const LINGER: Duration = Duration::from_secs(1);
/// Reads, of 4 KiB each, before a connection is closed.
const MAX_LINGER_READS: usize = 64;
