//! The name server's UDP and TCP sockets.

use std::io::{self, IoSlice};
use std::net::{self, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use peername_sys::event::readiness::register_readable;
use peername_sys::udp::{self, RecvBatch, SendBatch, Transmit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::answer::answer;
use super::table::SyntheticNames;

/// Answers on a UDP socket in a task of its own. Each response comes from the address that the query was sent to.
pub fn serve_udp(socket: OwnedFd, names: Arc<SyntheticNames>) -> io::Result<()> {
    let addr = UdpSocket::from(socket.try_clone()?).local_addr()?;
    let socket = udp::adopt(socket, addr).map_err(|error| error.source)?;
    socket.set_nonblocking(true)?;
    let socket = register_readable(socket.into()).map_err(|error| error.source)?;
    tokio::spawn(async move {
        let (mut batch, mut sender) = (RecvBatch::new(BATCH), SendBatch::default());
        // `readable` fails only at the end of the runtime.
        while let Ok(mut ready) = socket.readable().await {
            match ready.try_io(|socket| batch.receive(socket, 0..BATCH)) {
                Err(_) => {}
                Ok(Ok(n)) => {
                    for entry in 0..n {
                        respond(socket.get_ref(), &batch, entry, &mut sender, &names);
                    }
                    // The other tasks of this thread get their time even in a flood of queries.
                    yield_now().await;
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, "the jail's name server can't receive; it retries");
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    });
    Ok(())
}

/// Responds to one datagram. A response that can't be sent is lost, as on any network.
fn respond(
    socket: &OwnedFd,
    batch: &RecvBatch,
    entry: usize,
    sender: &mut SendBatch,
    names: &SyntheticNames,
) {
    let Some((about, query)) = batch.get(entry) else {
        return;
    };
    let Some(response) = answer(query, names) else {
        return;
    };
    let transmit = Transmit {
        parts: 0..1,
        to: Some(about.peer),
        from: about.local,
        segment: None,
    };
    let _ = sender.send(socket, &[IoSlice::new(&response)], &[transmit]);
}

/// Answers on a listening TCP socket in a task of its own (RFC 7766).
pub fn serve_tcp(socket: OwnedFd, names: Arc<SyntheticNames>) -> io::Result<()> {
    let socket = net::TcpListener::from(socket);
    socket.set_nonblocking(true)?;
    let listener = TcpListener::from_std(socket)?;
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let permit = Arc::clone(&permits).acquire_owned().await;
            let Ok((stream, _)) = listener.accept().await else {
                // Descriptors have run out.
                sleep(RETRY_DELAY).await;
                continue;
            };
            let names = Arc::clone(&names);
            tokio::spawn(async move {
                // An error ends this connection only.
                let _ = serve_stream(stream, &names).await;
                drop(permit);
            });
        }
    });
    Ok(())
}

async fn serve_stream(mut stream: TcpStream, names: &SyntheticNames) -> io::Result<()> {
    loop {
        let query = timeout(IDLE_TIMEOUT, read_message(&mut stream)).await??;
        let Some(response) = answer(&query, names) else {
            return Ok(());
        };
        let length = u16::try_from(response.len()).map_err(io::Error::other)?;
        let message = [&length.to_be_bytes()[..], &response].concat();
        timeout(IDLE_TIMEOUT, stream.write_all(&message)).await??;
        // As over UDP: the other tasks get their time even while every connection is full of queries.
        yield_now().await;
    }
}

/// Reads a message with its length before it. Queries for host names are short; a longer message ends the connection.
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > MAX_QUERY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Datagrams received at once.
const BATCH: usize = 16;
/// TCP connections at once; further ones wait in the accept backlog.
const MAX_CONNECTIONS: usize = 64;
/// Bytes of a query over TCP: header, name, and EDNS with a few options.
const MAX_QUERY: usize = 2048;
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay after a failed receive or accept: by then memory or descriptors may be free again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use hickory_proto::op::{Message, MessageType, OpCode, Query};
    use hickory_proto::rr::{Name, RecordType};

    use super::super::range::NameRanges;
    use super::*;

    /// Counts how often the task that runs this gets its time.
    async fn count_turns(turns: Arc<AtomicUsize>) {
        loop {
            turns.fetch_add(1, Relaxed);
            yield_now().await;
        }
    }

    /// A message over TCP: its length, and a query.
    fn query() -> Vec<u8> {
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        let name = Name::from_ascii("a.test.").unwrap();
        query.add_query(Query::query(name, RecordType::A));
        let query = query.to_vec().unwrap();
        let length = u16::try_from(query.len()).unwrap();
        [&length.to_be_bytes()[..], &query].concat()
    }

    #[tokio::test]
    async fn other_tasks_get_their_time_between_two_queries_over_tcp() {
        const QUERIES: usize = 40;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.write_all(&query().repeat(QUERIES)).await.unwrap();
        let turns = Arc::new(AtomicUsize::new(0));
        let others = tokio::spawn(count_turns(Arc::clone(&turns)));
        let names = SyntheticNames::new(NameRanges::default(), true);
        let serve = tokio::spawn(async move { serve_stream(stream, &names).await });
        for _ in 0..QUERIES {
            read_message(&mut client).await.unwrap();
        }
        assert!(turns.load(Relaxed) >= QUERIES, "{turns:?}");
        others.abort();
        serve.abort();
    }
}
