//! The open connections of each worker, which the control side lists and ends.
//!
//! Each worker has a table of its own, in thread-local storage: beginning and ending a connection takes no lock. The
//! control side reads the table by calls that run on the worker, a batch at a time; between batches the worker serves its
//! connections.

use std::cell::RefCell;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use peername_observe::connections::{
    ConnectionSnapshot, ConnectionSource, ConnectionState, Protocol, RelayMethod, SNAPSHOT_BATCH,
    SnapshotStream, seconds,
};
use peername_relay::{ActiveMethod, RelayStats};
use slab::Slab;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::command::WorkerCalls;
use super::load::WorkerLoad;
use crate::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};

/// A connection that carries requests, such as those of HTTP, and reports its own status.
pub trait ServedConnection: Debug + Send + Sync {
    /// Its status now.
    fn status(&self) -> ServedStatus;
}

/// The status of a [`ServedConnection`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedStatus {
    /// The stage that the connection has reached.
    pub state: ConnectionState,
    /// The host and port of the current or the last request.
    pub host: Option<String>,
    /// The time since a request was in flight last.
    pub idle: Duration,
}

/// An open connection, as it is listed.
#[derive(Debug)]
pub struct ConnectionEntry {
    id: u64,
    listener: LocalAddr,
    peer: PeerAddr,
    since: Instant,
    client: OnceLock<SocketAddr>,
    target: OnceLock<Target>,
    stats: Arc<RelayStats>,
    /// Set where the connection is more than a relay. Weak: the entry may outlive it.
    served: OnceLock<Weak<dyn ServedConnection>>,
    end_reason: OnceLock<EndReason>,
}

/// The reason for ending a connection from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// A request to the admin endpoint.
    Admin,
    /// A list was changed and denies its client.
    AccessRevoked,
}

impl ConnectionEntry {
    /// The live statistics of the connection's relay.
    pub fn stats(&self) -> &Arc<RelayStats> {
        &self.stats
    }

    /// Sets the client; later calls change nothing.
    pub fn set_client(&self, client: ClaimedSource) {
        let _ = self.client.set(client.0);
    }

    /// Sets the backend; later calls change nothing.
    pub fn set_target(&self, target: Target) {
        let _ = self.target.set(target);
    }

    /// The address that the listening socket is bound to.
    pub fn listener(&self) -> LocalAddr {
        self.listener
    }

    /// The other end of the connection.
    pub fn peer(&self) -> PeerAddr {
        self.peer
    }

    /// The time at which the connection was accepted.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The backend, once it is chosen.
    pub fn target(&self) -> Option<Target> {
        self.target.get().copied()
    }

    /// Sets the [`ServedConnection`], where the connection is more than a relay; later calls change nothing.
    pub fn set_served(&self, connection: Weak<dyn ServedConnection>) {
        let _ = self.served.set(connection);
    }

    /// The client, once it is known.
    pub fn client(&self) -> Option<ClaimedSource> {
        self.client.get().copied().map(ClaimedSource)
    }

    /// The reason for which the connection was ended from outside ([`OpenConnections`]); `None` if it was not.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.end_reason.get().copied()
    }

    fn state(&self, served: Option<&ServedStatus>) -> ConnectionState {
        match (self.stats.method(), served) {
            (Some(_), _) if self.stats.is_half_closed() => ConnectionState::HalfClosed,
            (Some(_), _) => ConnectionState::Open,
            (None, Some(served)) => served.state,
            (None, None) if self.target().is_some() => ConnectionState::Connecting,
            (None, None) => ConnectionState::Header,
        }
    }

    fn snapshot(&self, now: Instant) -> ConnectionSnapshot {
        let age = now.saturating_duration_since(self.since);
        let served = self
            .served
            .get()
            .and_then(Weak::upgrade)
            .map(|connection| connection.status());
        let method = self.stats.method();
        let idle = match (&served, method) {
            (Some(served), None) => Some(served.idle),
            _ => self.stats.idle(),
        };
        let tally = self.stats.tally();
        // Each request counts its bytes itself.
        let has_byte_counts = served.is_none() || method.is_some();
        ConnectionSnapshot {
            id: self.id,
            listener: self.listener.0,
            protocol: Protocol::Tcp,
            peer: self.peer.0,
            client: self.client.get().copied(),
            target: self.target().map(|target| target.0),
            state: self.state(served.as_ref()),
            age_s: seconds(age),
            idle_s: seconds(idle.unwrap_or(age).min(age)),
            bytes_in: has_byte_counts.then_some(tally.to_upstream),
            bytes_out: has_byte_counts.then_some(tally.to_downstream),
            host: served.and_then(|served| served.host),
            relay: method.map(|method| match method {
                ActiveMethod::Copy => RelayMethod::Copy,
                ActiveMethod::Splice => RelayMethod::Splice,
            }),
        }
    }
}

/// The open connections of all workers.
#[derive(Clone)]
pub struct OpenConnections(pub(super) WorkerCalls);

impl OpenConnections {
    /// Ends a connection: its task is dropped, so both of its sides are reset. Returns its last snapshot; `None` if it is not
    /// open.
    pub async fn end_one(&self, id: u64) -> Option<ConnectionSnapshot> {
        let workers = self.0.workers();
        let worker = id.checked_rem(workers as u64)?;
        let mut next = Some(0);
        while let Some(from) = next {
            let end = move || TABLE.with_borrow(|table| table.end(id, from));
            // A worker that has ended has no connections.
            let answer = self.0.call(worker as usize, end).await;
            let (ended, following) = answer.unwrap_or_default();
            if ended.is_some() {
                return ended;
            }
            next = following;
        }
        None
    }

    /// Ends the connections that `is_denied` selects, as [`OpenConnections::end_one`] does, and returns how many. A connection
    /// whose client is not known yet is left to the check of its header.
    pub async fn end_denied(&self, is_denied: Arc<IsDenied>) -> usize {
        let mut ended = 0;
        for worker in 0..self.0.workers() {
            let mut next = Some(0);
            while let Some(from) = next {
                let is_denied = Arc::clone(&is_denied);
                let end = move || TABLE.with_borrow(|table| table.end_denied(from, &*is_denied));
                let (count, following) = self.0.call(worker, end).await.unwrap_or_default();
                ended += count;
                next = following;
            }
        }
        ended
    }
}

/// Whether a connection's client is denied.
pub type IsDenied = dyn Fn(&ConnectionEntry) -> bool + Send + Sync;

impl ConnectionSource for OpenConnections {
    fn snapshots(&self) -> SnapshotStream {
        let calls = self.0.clone();
        stream::unfold((0, 0), move |(worker, from)| {
            let calls = calls.clone();
            async move {
                if worker >= calls.workers() {
                    return None;
                }
                let read = move || TABLE.with_borrow(|table| table.snapshots(from));
                match calls.call(worker, read).await {
                    Ok((batch, Some(from))) => Some((batch, (worker, from))),
                    Ok((batch, None)) => Some((batch, (worker + 1, 0))),
                    Err(_) => Some((Vec::new(), (worker + 1, 0))),
                }
            }
        })
        .boxed()
    }

    fn end(&self, id: u64) -> Option<BoxFuture<'static, Option<ConnectionSnapshot>>> {
        let connections = self.clone();
        Some(async move { connections.end_one(id).await }.boxed())
    }
}

/// Returns the first id of a process: the time in microseconds. So no connection has the id of one of an earlier process, by which
/// an operator would end the wrong one after an upgrade or a restart; unless the clock was set back, or that process accepted a
/// million a second. Readers of JSON that take numbers for floats keep ids exact (below 2^53) until the year 2255.
pub(super) fn first_id() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// Begins the table of this thread, worker `index` of `workers`. The ids of its connections are `index` modulo `workers`, from
/// `first_id` on, and their number is stored in `load`.
pub(super) fn begin_table(first_id: u64, index: usize, workers: usize, load: Arc<WorkerLoad>) {
    TABLE.with_borrow_mut(|table| {
        table.load = Some(load);
        table.step = workers as u64;
        table.next_id = first_id.next_multiple_of(table.step) + index as u64;
    });
}

/// Adds a connection to this worker's table, until the guard is dropped.
pub(super) fn insert(listener: LocalAddr, peer: PeerAddr) -> (Arc<ConnectionEntry>, TableGuard) {
    TABLE.with_borrow_mut(|table| {
        let entry = Arc::new(ConnectionEntry {
            id: table.next_id,
            listener,
            peer,
            since: Instant::now(),
            client: OnceLock::new(),
            target: OnceLock::new(),
            stats: Arc::default(),
            served: OnceLock::new(),
            end_reason: OnceLock::new(),
        });
        table.next_id += table.step;
        let key = table.slots.insert(Slot {
            entry: Arc::clone(&entry),
            task: None,
        });
        table.publish_load();
        (entry, TableGuard(key))
    })
}

/// Keeps a connection in the table of its thread. The guard must be dropped on that thread; the connection's task does so.
#[derive(Debug)]
pub(super) struct TableGuard(usize);

impl TableGuard {
    /// The key for [`set_task`].
    pub(super) fn key(&self) -> usize {
        self.0
    }
}

/// Sets the task that serves a connection.
pub(super) fn set_task(key: usize, task: AbortHandle) {
    TABLE.with_borrow_mut(|table| {
        if let Some(slot) = table.slots.get_mut(key) {
            slot.task = Some(task);
        }
    });
}

impl Drop for TableGuard {
    fn drop(&mut self) {
        // The slot is dropped outside of the borrow. A thread that is exiting has no table any more.
        let removed = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            let slot = table.slots.try_remove(self.0);
            table.publish_load();
            slot
        });
        drop(removed);
    }
}

struct Table {
    slots: Slab<Slot>,
    next_id: u64,
    step: u64,
    load: Option<Arc<WorkerLoad>>,
}

struct Slot {
    entry: Arc<ConnectionEntry>,
    task: Option<AbortHandle>,
}

impl Slot {
    fn end(&self, reason: EndReason) {
        let _ = self.entry.end_reason.set(reason);
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Each method works on the batch that begins at slot `from`, and returns its result with the slot to go on from.
impl Table {
    /// Copies the connections.
    fn snapshots(&self, from: usize) -> (Vec<ConnectionSnapshot>, Option<usize>) {
        let now = Instant::now();
        let batch = self
            .batch(from)
            .map(|slot| slot.entry.snapshot(now))
            .collect();
        (batch, self.next_batch(from))
    }

    /// Ends the connection if it is in the batch, and returns its last snapshot.
    fn end(&self, id: u64, from: usize) -> (Option<ConnectionSnapshot>, Option<usize>) {
        let found = self.batch(from).find(|slot| slot.entry.id == id);
        let ended = found.map(|slot| {
            slot.end(EndReason::Admin);
            slot.entry.snapshot(Instant::now())
        });
        (ended, self.next_batch(from))
    }

    /// Ends the connections that `is_denied` selects, and returns how many.
    fn end_denied(&self, from: usize, is_denied: &IsDenied) -> (usize, Option<usize>) {
        let mut ended = 0;
        for slot in self.batch(from).filter(|slot| is_denied(&slot.entry)) {
            slot.end(EndReason::AccessRevoked);
            ended += 1;
        }
        (ended, self.next_batch(from))
    }

    fn batch(&self, from: usize) -> impl Iterator<Item = &Slot> {
        (from..from + SNAPSHOT_BATCH).filter_map(move |key| self.slots.get(key))
    }

    fn publish_load(&self) {
        if let Some(load) = &self.load {
            load.set_connections(self.slots.len());
        }
    }

    fn next_batch(&self, from: usize) -> Option<usize> {
        let next = from + SNAPSHOT_BATCH;
        (next < self.slots.capacity()).then_some(next)
    }
}

thread_local! {
    static TABLE: RefCell<Table> = const {
        RefCell::new(Table {
            slots: Slab::new(),
            next_id: 0,
            step: 1,
            load: None,
        })
    };
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// The worker serves no connection during a batch, so a batch must be short.
    #[test]
    fn fifty_thousand_connections_are_listed_once_each_in_bounded_batches() {
        let address: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let connections: Vec<_> = (0..50_000)
            .map(|_| insert(LocalAddr(address), PeerAddr(address)))
            .collect();
        let (mut ids, mut next) = (HashSet::new(), Some(0));
        while let Some(from) = next {
            let began = cpu_time();
            let (batch, following) = TABLE.with_borrow(|table| table.snapshots(from));
            assert!(cpu_time() - began < Duration::from_millis(10));
            assert!(batch.len() <= SNAPSHOT_BATCH);
            ids.extend(batch.iter().map(|connection| connection.id));
            next = following;
        }
        assert_eq!(ids.len(), connections.len());
        drop(connections);
        assert!(TABLE.with_borrow(|table| table.slots.is_empty()));
    }

    /// The CPU time of this thread, which does not depend on how busy the machine is.
    fn cpu_time() -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    }
}
