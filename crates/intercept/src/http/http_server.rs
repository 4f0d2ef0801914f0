//! HTTP on a connection whose place is known: inside a tunnel, or redirected to us.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::http::error_response::Form;
use crate::audit::Record;
use crate::http::response_body::Answer;
use crate::http::client_connection::Client;
use crate::http::exchange::{Exchange, Switched};
use crate::http::framing::{Shared, Watched};
use crate::request::target::Named;
use crate::request::refusal::Refusal;
use crate::state::Site;
use crate::http::websocket;
use crate::stream::prefixed::Reading;

/// Answers the requests of one connection.
#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) site: Arc<Site>,
    pub(crate) client: Arc<Client>,
    pub(crate) named: Arc<Named>,
    switched: Slot<Switched>,
}

/// Filled by a request, emptied once its connection is no HTTP any more.
pub(crate) type Slot<T> = Arc<Mutex<Option<T>>>;

pub(crate) type Answering =
    Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

impl Inner {
    pub(crate) fn new(site: &Arc<Site>, client: &Arc<Client>, named: Named) -> Self {
        Self {
            site: Arc::clone(site),
            client: Arc::clone(client),
            named: Arc::new(named),
            switched: Slot::default(),
        }
    }

    /// Serves HTTP/1, and what a request may switch to.
    pub(crate) async fn http1<T>(self, io: T)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (site, client) = (Arc::clone(&self.site), Arc::clone(&self.client));
        let Some(ended) = http1(&site, &client, io, self, First::AtLeisure).await else {
            return;
        };
        let (io, service) = ended;
        match take(&service.switched) {
            Some(switched) => websocket::carry(io, switched).await,
            None => finish(io).await,
        }
    }

    /// Serves HTTP/2.
    pub(crate) async fn http2<T>(self, io: T)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (site, client) = (Arc::clone(&self.site), Arc::clone(&self.client));
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .enable_connect_protocol()
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(MAX_HEADER as u32)
            .keep_alive_interval(PING)
            .serve_connection(TokioIo::new(io), self);
        let mut connection = pin!(connection);
        let ended = run(
            (&site, &client),
            &mut connection,
            |connection, cx| connection.as_mut().poll(cx),
            |connection| connection.as_mut().graceful_shutdown(),
        );
        // Whose fault it is stands in the lines of its requests.
        drop(ended.await);
    }
}

/// Runs a connection to its end, and tells it to come to one where nothing is asked for any more; `None` where it
/// then does not.
async fn run<C, T>(
    (site, client): (&Arc<Site>, &Arc<Client>),
    connection: &mut C,
    poll: impl Fn(&mut C, &mut Context<'_>) -> Poll<T>,
    finish: impl Fn(&mut C),
) -> Option<T> {
    let mut idle = pin!(client.exchanges.idle(site.rules.idle_timeout));
    let (mut is_draining, mut cut_at) = (false, None);
    loop {
        tokio::select! {
            ended = poll_fn(|cx| poll(connection, cx)) => return Some(ended),
            () = site.draining(), if !is_draining => is_draining = true,
            () = &mut idle => {
                cut_at.get_or_insert_with(|| Instant::now() + LINGER);
                // A request that came in this moment is answered, and watched.
                idle.set(client.exchanges.idle(site.rules.idle_timeout));
            }
            () = sleep_until(cut_at.unwrap_or_else(Instant::now)), if cut_at.is_some() => {
                if client.exchanges.are_none() {
                    return None;
                }
                cut_at = Some(Instant::now() + LINGER);
            }
        }
        finish(connection);
    }
}

impl Service<Request<Incoming>> for Inner {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let this = self.clone();
        Box::pin(async move {
            let exchange = Exchange {
                site: &this.site,
                client: &this.client,
                named: &this.named,
            };
            let mut switched = None;
            let answer = exchange.answer(request, &mut switched).await;
            if switched.is_some() {
                put(&this.switched, switched);
            }
            Ok(answer)
        })
    }
}

/// Serves HTTP/1 until the connection ends, which is `None`, or is to be used for something else: then
/// the connection comes back with its service. What was read too much goes with it.
pub(crate) async fn http1<T, S>(
    site: &Arc<Site>,
    client: &Arc<Client>,
    io: T,
    service: S,
    first: First,
) -> Option<(Reading<T>, S)>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<
            Request<Incoming>,
            Response = Response<Answer>,
            Error = Infallible,
            Future = Answering,
        > + Unpin,
{
    let framing = Shared::default();
    if first == First::Awaited {
        framing.lock().await_head();
    }
    let heads = framing.clone();
    let io = Watched::new(io, framing.clone());
    let service = Guarded {
        service,
        framing,
        site: Arc::clone(site),
        client: Arc::clone(client),
    };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(site.rules.idle_timeout)
        .max_header_size(MAX_HEADER)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), service);
    let ended = run(
        (site, client),
        &mut connection,
        |connection, cx| connection.poll_without_shutdown(cx),
        |connection| Pin::new(connection).graceful_shutdown(),
    );
    let ended = tokio::select! {
        ended = ended => ended?,
        () = overdue(&heads, client, site.rules.opening_timeout) => {
            site.unopened(client.peer, "head_timeout");
            return None;
        }
    };
    if let Err(error) = ended {
        if error.is_parse() {
            site.unopened(client.peer, "bad_request");
            // The client has an answer of hyper's.
            let mut record = Record::begin(&site.metrics, client, "");
            record.refused(&Refusal::bad_request(error.to_string()));
        }
        return None;
    }
    let parts = connection.into_parts();
    let io = parts.io.into_inner().into_inner();
    Some((Reading::new(io, parts.read_buf), parts.service.service))
}

/// Returns once the head of a request has been on its way for too long. What a client sends while its last request is
/// being answered may have to wait here.
async fn overdue(heads: &Shared, client: &Client, limit: Duration) {
    loop {
        heads.head_is_late(limit).await;
        if client.exchanges.are_none() {
            return;
        }
        sleep(limit).await;
    }
}

/// When a connection's first request has to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// As soon as the connection is there.
    Awaited,
    /// As any other: clients open tunnels that they may want to use soon.
    AtLeisure,
}

/// Refuses what hyper has read and should not have.
struct Guarded<S> {
    service: S,
    framing: Shared,
    site: Arc<Site>,
    client: Arc<Client>,
}

impl<S> Service<Request<Incoming>> for Guarded<S>
where
    S: Service<
            Request<Incoming>,
            Response = Response<Answer>,
            Error = Infallible,
            Future = Answering,
        >,
{
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let Err(smell) = self.framing.lock().next() else {
            return self.service.call(request);
        };
        let method = request.method().as_str();
        let mut record = Record::begin(&self.site.metrics, &self.client, method);
        record.path(request.uri());
        let form = Form::of(request.headers());
        let refused = form.refuse(&Refusal::bad_request(smell), record);
        Box::pin(std::future::ready(Ok(refused)))
    }
}

/// Ends a connection whose last answer has been written. What the client is still sending is read for a
/// moment: closing on unread data sends RST, which would take the answer with it.
pub(crate) async fn finish<T>(mut io: Reading<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let drained = async {
        if io.shutdown().await.is_err() {
            return;
        }
        let mut rest = [0; 4096];
        for _ in 0..MOST_DRAINED {
            if !matches!(io.read(&mut rest).await, Ok(1..)) {
                break;
            }
        }
    };
    // However it ends, it is over.
    let _ = timeout(LINGER, drained).await;
}

pub(crate) fn put<T>(slot: &Slot<T>, value: Option<T>) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

pub(crate) fn take<T>(slot: &Slot<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Requests of one client at a time.
const STREAMS: u32 = 128;
/// Of a request; hyper answers 431 beyond it.
const MAX_HEADER: usize = 64 * 1024;
const MAX_HEADERS: usize = 200;
/// A client that has vanished is noticed by the second one it does not answer.
const PING: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(1);
/// Reads of 4 KiB.
const MOST_DRAINED: usize = 64;
