//! The demo's backend and balancer: plain sockets without any code of peername.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Starts a TCP backend that sends each client the peer address of its connection.
pub(super) fn serve(addr: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(addr)?;
    let addr = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming() {
            let _ = client.and_then(answer);
        }
    });
    Ok(addr)
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    let seen = client.peer_addr()?;
    BufReader::new(&client).read_line(&mut String::new())?;
    writeln!(client, "{seen}")
}

/// Starts a UDP backend that answers each datagram with its source address.
pub(super) fn serve_datagrams(addr: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(addr)?;
    thread::spawn(move || {
        let mut question = [0; 64];
        while let Ok((_, client)) = socket.recv_from(&mut question) {
            let _ = socket.send_to(client.to_string().as_bytes(), client);
        }
    });
    Ok(())
}

/// Connects as a balancer does, sends its header and a client's request, and returns the address in the backend's
/// answer.
pub(super) fn ask(to: SocketAddr, header: &[u8]) -> anyhow::Result<SocketAddr> {
    let mut socket = connect(to).with_context(|| format!("connecting to {to}"))?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.write_all(header)?;
    socket.write_all(b"what is my address?\n")?;
    let mut line = String::new();
    BufReader::new(socket)
        .read_line(&mut line)
        .with_context(|| format!("reading from {to}"))?;
    line.trim_end()
        .parse()
        .with_context(|| format!("{to} answered {line:?}"))
}

/// Connects once the listener is open: the proxy may not have opened it yet.
fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match TcpStream::connect(to) {
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline =>
            {
                thread::sleep(RETRY_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Sends a balancer's header and a client's request in one datagram, and returns the address in the backend's answer.
pub(super) fn ask_in_datagram(to: SocketAddr, header: &[u8]) -> anyhow::Result<SocketAddr> {
    let socket = UdpSocket::bind(SocketAddr::new(to.ip(), 0))?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.send_to(&[header, b"what is my address?"].concat(), to)?;
    let mut answer = [0; 64];
    let (len, _) = socket
        .recv_from(&mut answer)
        .with_context(|| format!("receiving from {to}"))?;
    let answer = String::from_utf8_lossy(answer.get(..len).unwrap_or_default());
    answer
        .parse()
        .with_context(|| format!("{to} answered {answer:?}"))
}

/// The time that the proxy has to open its listeners.
const START_LIMIT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
