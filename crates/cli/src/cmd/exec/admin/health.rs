//! The health of the supervisor, as its admin endpoint reports it.

use std::future::pending;
use std::io::ErrorKind;
use std::os::unix::net;
use std::sync::Arc;

use anyhow::Context;
use peername_exec::admin::{RELOAD_REFUSED, RELOADED};
use peername_observe::admin::Health;
use peername_observe::admin::history::History;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// The liveness socket. The supervisor answers all requests that one read(2) returns with a single byte.
#[derive(Debug)]
pub(super) struct SupervisorSocket {
    socket: UnixStream,
    state: watch::Sender<SupervisorState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupervisorState {
    /// The number of answers so far.
    Running(u64),
    Exited,
}

impl SupervisorSocket {
    /// Registers the socket with the tokio runtime of this thread.
    pub(super) fn new(socket: net::UnixStream) -> anyhow::Result<Self> {
        socket.set_nonblocking(true).context("ioctl(FIONBIO)")?;
        Ok(Self {
            socket: UnixStream::from_std(socket).context("epoll_ctl(2)")?,
            state: watch::Sender::new(SupervisorState::Running(0)),
        })
    }

    /// Reads answers, and the reports of an agent's reloads, until the supervisor has exited.
    pub(super) async fn run(&self, history: &History) {
        let mut bytes = [0; 64];
        while self.socket.readable().await.is_ok() {
            match self.socket.try_read(&mut bytes) {
                Ok(len @ 1..) => {
                    for byte in bytes.iter().take(len) {
                        self.handle(*byte, history);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => break,
            }
        }
        self.state.send_replace(SupervisorState::Exited);
    }

    fn handle(&self, byte: u8, history: &History) {
        match byte {
            RELOADED => history.add_reload(Ok(())),
            RELOAD_REFUSED => history.add_reload(Err("the agent's log has the reason".to_owned())),
            _ => self.state.send_modify(|state| {
                if let SupervisorState::Running(answers) = state {
                    *answers += 1;
                }
            }),
        }
    }

    /// Returns once the supervisor has answered; never if it has exited.
    async fn wait_answer(&self) {
        let mut state = self.state.subscribe();
        if self.socket.writable().await.is_ok() {
            // Fails if the buffer is full; then there are requests to answer.
            let _ = self.socket.try_write(b"?");
        }
        let has_answered = state.changed().await.is_ok() && !self.has_exited();
        if !has_answered {
            pending::<()>().await;
        }
    }

    fn has_exited(&self) -> bool {
        *self.state.borrow() == SupervisorState::Exited
    }
}

/// The health of `exec`, which is that of the supervisor.
pub(super) struct ExecHealth(pub(super) Arc<SupervisorSocket>);

impl Health for ExecHealth {
    const HANG_REASON: &'static str = "the supervisor does not answer";

    async fn check_liveness(&self) {
        self.0.wait_answer().await;
    }

    async fn check_readiness(&self) -> Result<(), String> {
        if self.0.has_exited() {
            return Err("the supervisor has exited: restart the program".to_owned());
        }
        Ok(())
    }
}
