//! `peername send`: sends one header and standard input to an address, and prints what it receives.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use peername_daemon::usage::UsageError;
use peername_daemon::value;
use peername_proto::{Spp, Transport};
use peername_sys::event::readiness::is_transient;
use peername_sys::event::{wait_readable, wait_writable};
use peername_sys::tcp::stream;

use crate::options::sent_header::Header;

/// Options of `peername send`.
#[derive(Debug, clap::Args)]
#[command(
    before_help = "Example:\n  peername send --source 203.0.113.7:4711 127.0.0.1:8443 < request.txt"
)]
pub(crate) struct Args {
    /// The receiver
    #[arg(value_name = "ADDR", value_parser = value::address)]
    to: SocketAddr,
    /// The transport; over UDP one datagram is sent, and replies are printed until none has come for a second
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
    #[command(flatten)]
    header: Header,
    /// The destination address in the header [default: ADDR]
    #[arg(long, value_name = "ADDR:PORT", value_parser = value::address)]
    destination: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

/// Runs `peername send`.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.header.is_absent() && args.destination.is_some() {
        let text = "--destination is part of a header, and --proxy-version none sends none";
        bail!(UsageError(text.to_owned()));
    }
    match args.protocol {
        Protocol::Tcp => send_tcp(args),
        Protocol::Udp => send_udp(args),
    }
}

fn send_tcp(args: &Args) -> anyhow::Result<ExitCode> {
    let header_template = args.header.header_template()?;
    let socket = TcpStream::connect(args.to).map_err(|error| failed(args, "connect(2)", &error))?;
    let destination = args.destination.unwrap_or(args.to);
    let header = header_template.header(Transport::Stream, socket.local_addr()?, destination)?;
    (&socket)
        .write_all(&header)
        .map_err(|error| failed(args, "sending the header", &error))?;
    socket.set_nonblocking(true)?;
    let writer = socket.try_clone()?;
    let sending = Arc::new(Mutex::new(Sending::Open));
    let shared = Arc::clone(&sending);
    // Not joined: standard input may stay open long after the receiver has closed the connection.
    thread::spawn(move || send_stdin(&writer, &shared));
    receive(&socket, &sending)
}

fn send_udp(args: &Args) -> anyhow::Result<ExitCode> {
    let header_template = args.header.datagram_header_template()?;
    let unspecified: IpAddr = match args.to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0)).context("bind(2)")?;
    socket
        .connect(args.to)
        .map_err(|error| failed(args, "connect(2)", &error))?;
    let destination = args.destination.unwrap_or(args.to);
    let client = header_template.source.unwrap_or(socket.local_addr()?);
    let mut datagram = if args.header.is_spp() {
        let proxy = destination;
        Spp { client, proxy }.to_bytes().to_vec()
    } else {
        header_template.header(Transport::Datagram, client, destination)?
    };
    io::stdin().lock().read_to_end(&mut datagram)?;
    socket
        .send(&datagram)
        .map_err(|error| failed(args, "send(2)", &error))?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut buffer = vec![0; 64 * 1024];
    let mut out = io::stdout().lock();
    loop {
        let len = match socket.recv(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => return Err(failed(args, "recv(2)", &error)),
        };
        let reply = buffer.get(..len).unwrap_or_default();
        // A reply of the Simple Proxy Protocol has a header, too.
        let header_len = if args.header.is_spp() && Spp::parse(reply).is_ok() {
            Spp::LEN
        } else {
            0
        };
        out.write_all(reply.get(header_len..).unwrap_or_default())?;
        out.flush()?;
    }
}

/// The error of a call, with the receiver and, if that has refused, how to see what listens there.
fn failed(args: &Args, call: &str, error: &io::Error) -> anyhow::Error {
    let advice = match (error.kind(), args.protocol) {
        (ErrorKind::ConnectionRefused, Protocol::Tcp) => "; does it listen there (`ss -ltn`)?",
        (ErrorKind::ConnectionRefused, Protocol::Udp) => "; does it listen there (`ss -lun`)?",
        _ => "",
    };
    anyhow!("{}: {call}: {error}{advice}", args.to)
}

/// The progress of the thread that sends standard input.
#[derive(Debug)]
enum Sending {
    /// Standard input has not ended.
    Open,
    /// All of standard input was sent.
    Complete,
    /// Standard input could not be read to its end.
    Unread(io::Error),
    /// send(2) failed. The kernel reports a reset to one call only, which may be this one.
    Failed(io::Error),
}

/// Sends standard input, then FIN. The lock is held from each send(2) until its error is recorded, because without the record
/// [`receive`] would take a reset for an orderly end. Therefore send(2) must not block.
fn send_stdin(socket: &TcpStream, sending: &Mutex<Sending>) {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let mut rest = match stdin.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => buffer.get(..len).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                *lock(sending) = Sending::Unread(error);
                // An error means that the connection has ended.
                let _ = socket.shutdown(Shutdown::Write);
                return;
            }
        };
        while !rest.is_empty() {
            // An error is reported by send(2), too.
            let _ = wait_writable(socket.as_fd());
            let mut state = lock(sending);
            match stream::send(socket, rest) {
                Ok(len) => rest = rest.get(len..).unwrap_or_default(),
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    *state = Sending::Failed(error);
                    return;
                }
            }
        }
    }
    let mut state = lock(sending);
    if socket.shutdown(Shutdown::Write).is_ok() {
        *state = Sending::Complete;
    }
}

/// Prints received bytes without buffering, until the receiver ends the connection.
///
/// # Errors
///
/// The connection was reset; or it was closed without an answer, before all of standard input and its end was sent.
fn receive(mut socket: &TcpStream, sending: &Mutex<Sending>) -> anyhow::Result<ExitCode> {
    let mut buffer = vec![0; 64 * 1024];
    let mut is_answered = false;
    let mut out = io::stdout().lock();
    loop {
        wait_readable([socket.as_fd()], None)?;
        let received = match socket.read(&mut buffer) {
            Err(error) if is_transient(&error) => continue,
            received => received.context("the receiver ended the connection")?,
        };
        match received {
            0 => break,
            n => {
                is_answered = true;
                out.write_all(buffer.get(..n).unwrap_or_default())?;
                out.flush()?;
            }
        }
    }
    match std::mem::replace(&mut *lock(sending), Sending::Open) {
        // After the receiver's FIN, its end of the connection is closed: EPIPE is not a reset.
        Sending::Failed(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("the receiver ended the connection")
        }
        Sending::Unread(error) => Err(error).context("read(2) of standard input"),
        Sending::Open | Sending::Failed(_) if !is_answered => bail!(
            "the receiver closed the connection without an answer, before standard input and its end were sent; its log may say why"
        ),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn lock(sending: &Mutex<Sending>) -> MutexGuard<'_, Sending> {
    sending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without a reply for this long, no further one is expected.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
