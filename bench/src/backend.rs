//! The echo server behind every contestant.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::host::poller::{Interest, Poller};
use crate::wire::pattern;

pub(crate) mod tally;
mod udp_echo;

/// `peername-bench backend`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Exit after this time in any case
    #[arg(long = "for", value_name = "DURATION", default_value = "10m")]
    lifetime: humantime::Duration,
}

/// Echoes until the lifetime is over, TCP on this thread and UDP on another. A connection that fails is closed
/// silently: the generator verifies.
pub(crate) fn run(args: &Args) -> Result<()> {
    let end = Instant::now() + *args.lifetime;
    let udp = udp_echo::bind(args.listen)?;
    thread::spawn(move || {
        if let Err(error) = udp_echo::serve(&udp) {
            eprintln!("peername-bench: {error:#}");
        }
    });
    let mut backend = Backend::listen(args.listen)?;
    let mut ready = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        backend
            .poller
            .wait(left, &mut ready)
            .context("epoll_wait")?;
        for &(token, _) in &ready {
            match token {
                LISTENER => backend.accept()?,
                token => backend.serve(token)?,
            }
        }
    }
}

struct Backend {
    listener: Socket,
    poller: Poller,
    connections: Vec<Option<Echo>>,
    free: VecDeque<usize>,
    scratch: Box<[u8]>,
}

impl Backend {
    fn listen(address: SocketAddr) -> Result<Self> {
        let domain = Domain::for_address(address);
        let listener = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        listener.set_reuse_address(true)?;
        // Accepted sockets inherit TCP_NODELAY, which saves a system call for each.
        listener.set_tcp_nodelay(true)?;
        listener
            .bind(&address.into())
            .with_context(|| format!("bind({address})"))?;
        listener.listen(BACKLOG).context("listen")?;
        let poller = Poller::new().context("epoll_create")?;
        poller.add(&listener, LISTENER, Interest::IN)?;
        let scratch = vec![0; pattern::MAX_CHUNK_BYTES].into_boxed_slice();
        Ok(Self {
            listener,
            poller,
            connections: Vec::new(),
            free: VecDeque::new(),
            scratch,
        })
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            // accept4 of the C library: a direct system call would bypass `peername exec --mode preload`.
            let socket = match self.listener.accept() {
                Ok((socket, _)) => TcpStream::from(socket),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => continue,
                    _ => return Err(error).context("accept4"),
                },
            };
            socket.set_nonblocking(true).context("ioctl(FIONBIO)")?;
            let token = self.free.pop_front().unwrap_or(self.connections.len());
            self.poller.add(&socket, token, Interest::IN)?;
            let echo = Some(Echo {
                socket,
                unsent: Vec::new(),
            });
            match self.connections.get_mut(token) {
                Some(slot) => *slot = echo,
                None => self.connections.push(echo),
            }
        }
    }

    fn serve(&mut self, token: usize) -> Result<()> {
        let Some(Some(echo)) = self.connections.get_mut(token) else {
            return Ok(());
        };
        let was_blocked = !echo.unsent.is_empty();
        if echo.step(&mut self.scratch).is_err() {
            self.connections[token] = None;
            self.free.push_back(token);
            return Ok(());
        }
        let is_blocked = !echo.unsent.is_empty();
        if was_blocked != is_blocked {
            let interest = if is_blocked {
                Interest::OUT
            } else {
                Interest::IN
            };
            self.poller
                .modify(&echo.socket, token, interest)
                .context("epoll_ctl")?;
        }
        Ok(())
    }
}

/// One connection, with backpressure: nothing more is read while bytes are unsent, so a client that does not read
/// holds at most one scratch buffer here.
struct Echo {
    socket: TcpStream,
    unsent: Vec<u8>,
}

impl Echo {
    /// Does one read and one write, or, with unsent bytes, one write.
    ///
    /// # Errors
    /// The connection has ended; the end of the stream is [`io::ErrorKind::UnexpectedEof`].
    fn step(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        if !self.unsent.is_empty() {
            let sent = zero_if_would_block(self.socket.write(&self.unsent))?;
            self.unsent.drain(..sent);
            return Ok(());
        }
        let received = match self.socket.read(scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => zero_if_would_block(received)?,
        };
        if received > 0 {
            let sent = zero_if_would_block(self.socket.write(&scratch[..received]))?;
            self.unsent.extend_from_slice(&scratch[sent..received]);
        }
        Ok(())
    }
}

/// Maps EAGAIN, a full or empty socket buffer, to a transfer of zero bytes.
pub(crate) fn zero_if_would_block(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

/// The token of the listener; no connection has it.
const LISTENER: usize = usize::MAX;

/// The accept backlog: the kernel's own default maximum (net.core.somaxconn since 5.4). With a short queue a burst loses
/// SYNs, and the run measures retransmission timers.
const BACKLOG: i32 = 4096;
