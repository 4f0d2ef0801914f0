//! Handover of sessions to a new process: their state as plain data, with their sockets.
//!
//! While a worker is frozen, it reads nothing, and datagrams wait in the sockets' receive buffers. It keeps everything until
//! the new process serves, so it can go on if that fails.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::BASE64_NOPAD;
use peername_server::addr::PeerAddr;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::dialect::SessionHeaders;
use super::dialect::header::DatagramHeader;
use super::endpoints::{FlowKey, ReplyTo, SessionKey};
use crate::policy::claims::{Claims, HeaderFacts};
use crate::telemetry::record::session::RecordState;

/// A part of the state of one worker. The sockets of its sessions accompany it, in their order.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct WorkerState {
    pub(super) sessions: Vec<SessionState>,
    pub(super) flows: Vec<FlowState>,
    /// The kernel's count of dropped datagrams of each listener. Empty in all parts but one.
    pub(super) overflows: Vec<u32>,
}

/// A part of the state of one worker, with the sockets of its sessions.
pub type ReceivedState = (WorkerState, Vec<OwnedFd>);

/// Sends a part of a worker's state to the new process.
pub type StateSink = Box<dyn FnMut(WorkerState, &[BorrowedFd<'_>]) -> io::Result<()> + Send>;

/// The state of a [`Session`](super::session::Session).
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SessionState {
    pub(super) key: SessionKey,
    pub(super) balancer: IpAddr,
    pub(super) reply_to: ReplyTo,
    pub(super) upstream: SocketAddr,
    pub(super) headers: SessionHeaders,
    /// The time since the last datagram.
    pub(super) idle: Duration,
    /// The time since the last request.
    pub(super) since_request: Duration,
    pub(super) is_answered: bool,
    /// Whether the session has the client's own port.
    pub(super) has_client_port: bool,
    /// The kernel's count of dropped replies.
    pub(super) overflow: u32,
    pub(super) record: RecordState,
}

/// The state of a flow: the facts of its last header.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct FlowState {
    pub(super) key: FlowKey,
    facts: HeaderFacts,
    pub(super) idle: Duration,
    pub(super) is_answered: bool,
}

/// A command to a worker.
pub(super) enum HandoverCommand {
    /// Shares the listening sockets.
    Share(oneshot::Sender<Vec<Arc<UdpSocket>>>),
    /// Stops reading, and sends the state.
    Freeze {
        sink: StateSink,
        /// Reports the result of sending the state.
        sent: oneshot::Sender<io::Result<()>>,
        /// Gets a message when the new process serves. If the sender is dropped instead, the worker goes on.
        verdict: oneshot::Receiver<()>,
    },
}

/// The workers of one group of listeners.
#[derive(Clone, Debug, Default)]
pub struct UdpWorkers(pub(super) Vec<mpsc::UnboundedSender<HandoverCommand>>);

/// Frozen workers. When this value is dropped, they go on.
#[derive(Debug, Default)]
pub struct FrozenWorkers(Vec<oneshot::Sender<()>>);

impl UdpWorkers {
    /// Returns the listening sockets of each worker.
    pub async fn share_sockets(&self) -> io::Result<Vec<Vec<Arc<UdpSocket>>>> {
        let mut by_worker = Vec::new();
        for worker in &self.0 {
            let (reply, answer) = oneshot::channel();
            let _ = worker.send(HandoverCommand::Share(reply));
            by_worker.push(answer.await.map_err(io::Error::other)?);
        }
        Ok(by_worker)
    }

    /// Makes all workers stop reading and send their state to the sink that `sink_for` makes for each.
    ///
    /// # Errors
    ///
    /// The error of a sink. Then all workers go on.
    pub async fn freeze(&self, sink_for: impl Fn(usize) -> StateSink) -> io::Result<FrozenWorkers> {
        let mut frozen = FrozenWorkers::default();
        let mut answers = Vec::new();
        for (number, worker) in self.0.iter().enumerate() {
            let ((sent, answer), (approve, verdict)) = (oneshot::channel(), oneshot::channel());
            let _ = worker.send(HandoverCommand::Freeze {
                sink: sink_for(number),
                sent,
                verdict,
            });
            answers.push(answer);
            frozen.0.push(approve);
        }
        for answer in answers {
            answer.await.map_err(io::Error::other)??;
        }
        Ok(frozen)
    }
}

impl FrozenWorkers {
    /// Adds the frozen workers of another group of listeners.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Ends the workers without closing their sessions, which the new process serves.
    pub fn hand_over(self) {
        for worker in self.0 {
            let _ = worker.send(());
        }
    }
}

impl WorkerState {
    /// Replaces the indices of the previous process's listeners by this process's. `None` where an index is unknown.
    pub(super) fn renumber(&mut self, new_index: &[usize]) -> Option<()> {
        let translate = |index: &mut usize| {
            *index = *new_index.get(*index)?;
            Some(())
        };
        for session in &mut self.sessions {
            translate(&mut session.key.listener)?;
            translate(&mut session.reply_to.listener)?;
        }
        for flow in &mut self.flows {
            translate(&mut flow.key.listener)?;
        }
        let mut overflows = vec![0; self.overflows.len()];
        for (&index, &overflow) in new_index.iter().zip(&self.overflows) {
            *overflows.get_mut(index)? = overflow;
        }
        self.overflows = overflows;
        Some(())
    }
}

/// Sends sessions and flows in parts that each fit into a message.
pub(super) fn send_in_parts(
    sessions: Vec<(SessionState, BorrowedFd<'_>)>,
    flows: Vec<FlowState>,
    overflows: Vec<u32>,
    sink: &mut StateSink,
) -> io::Result<()> {
    let mut part = WorkerState {
        overflows,
        ..WorkerState::default()
    };
    for flows in flows.chunks(FLOWS_PER_PART) {
        part.flows = flows.to_vec();
        sink(std::mem::take(&mut part), &[])?;
    }
    let (mut fds, mut bytes) = (Vec::new(), 0);
    for (session, fd) in sessions {
        let headers = session.headers.request.len() + session.headers.reply.len();
        bytes += BASE64_NOPAD.encode_len(headers) + SESSION_BYTES;
        part.sessions.push(session);
        fds.push(fd);
        if bytes >= PART_BYTES || fds.len() >= SESSIONS_PER_PART {
            sink(std::mem::take(&mut part), &fds)?;
            fds.clear();
            bytes = 0;
        }
    }
    sink(part, &fds)
}

/// The time `ago` before `now`, or `now` where the clock does not reach so far back.
pub(crate) fn instant_before(now: Instant, ago: Duration) -> Instant {
    now.checked_sub(ago).unwrap_or(now)
}

impl FlowState {
    pub(crate) fn new(
        key: FlowKey,
        header: &DatagramHeader,
        idle: Duration,
        is_answered: bool,
    ) -> Self {
        Self {
            key,
            facts: header.claims.facts,
            idle,
            is_answered,
        }
    }

    pub(crate) fn peer(&self) -> PeerAddr {
        PeerAddr(self.key.balancer)
    }

    pub(crate) fn header(&self) -> DatagramHeader {
        DatagramHeader {
            claims: Claims::from_datagram(self.facts, self.peer()),
            len: 0,
            spp: None,
        }
    }
}

/// The number of file descriptors that a message may have.
const SESSIONS_PER_PART: usize = peername_sys::ipc::fd_passing::MAX_FDS;
const FLOWS_PER_PART: usize = 128;
/// A part is sent once its sessions have this many bytes. A message must fit into a socket's send buffer, of 208 KiB by
/// default.
const PART_BYTES: usize = 48 << 10;
/// Upper limit of a session's state without its headers.
const SESSION_BYTES: usize = 1280;
