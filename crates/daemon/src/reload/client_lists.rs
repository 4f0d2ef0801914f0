//! Keeps the lists of clients in force: reads a file again when it changes, and ends the connections and sessions of clients that
//! are denied then.
//!
//! This is not a reload. A ban must not depend on the rest of the configuration, nor wait for a name server; and there may be a
//! hundred of them an hour. It goes on while the process drains.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use peername_observe::admin::history::History;
use peername_proxy::udp::OpenSessions;
use peername_server::access::clients::ClientAccess;
use peername_server::workers::connections::{ConnectionEntry, OpenConnections};
use peername_sys::Transport;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

use super::file_watch::{FileWatch, Fingerprints};
use crate::listeners::{BoundAddresses, ListenerKey};

/// The policy of each listener, by the address that it is bound to.
#[derive(Clone, Debug, Default)]
pub struct ClientPolicies(HashMap<ListenerKey, Arc<ClientAccess>>);

/// The policies in force. A reload replaces them.
pub struct ClientLists(watch::Sender<Policies>);

#[derive(Clone, Debug, Default)]
struct Policies {
    open: ClientPolicies,
    /// Those of listeners that a reload has closed, for connections that are open.
    closed: ClientPolicies,
}

/// What the lists apply to.
pub struct OpenClients {
    /// Connections over TCP.
    pub connections: OpenConnections,
    /// Sessions over UDP.
    pub sessions: OpenSessions,
    /// Whether a policy denies the client of a connection.
    pub is_denied: Arc<IsDenied>,
}

/// Whether a policy denies the client of a connection.
pub type IsDenied = dyn Fn(&ConnectionEntry, &ClientAccess) -> bool + Send + Sync;

impl ClientPolicies {
    /// Adds the policy of these listeners.
    pub fn add(
        &mut self,
        listeners: impl Iterator<Item = ListenerKey>,
        bound: &BoundAddresses,
        policy: &Arc<ClientAccess>,
    ) {
        let addresses = listeners.filter_map(|key| Some((key.0, *bound.get(&key)?)));
        self.0
            .extend(addresses.map(|key| (key, Arc::clone(policy))));
    }

    fn of_tcp(&self, listener: SocketAddr) -> Option<&ClientAccess> {
        self.0.get(&(Transport::Tcp, listener)).map(Arc::as_ref)
    }

    /// The policies that have lists, each once.
    fn with_lists(&self) -> Vec<Arc<ClientAccess>> {
        let mut all = Vec::<Arc<ClientAccess>>::new();
        for policy in self.0.values().filter(|policy| policy.has_lists()) {
            if !all.iter().any(|known| Arc::ptr_eq(known, policy)) {
                all.push(Arc::clone(policy));
            }
        }
        all
    }
}

impl Policies {
    fn replace_open(&mut self, policies: ClientPolicies) {
        let before = std::mem::replace(&mut self.open, policies);
        self.closed.0.extend(before.0);
        self.closed
            .0
            .retain(|key, _| !self.open.0.contains_key(key));
    }

    fn of_tcp(&self, listener: SocketAddr) -> Option<&ClientAccess> {
        let closed = || self.closed.of_tcp(listener);
        self.open.of_tcp(listener).or_else(closed)
    }
}

impl ClientLists {
    /// Begins to keep these policies in force, and reports failed reads to `history`. Call it after privileges are dropped,
    /// which belong to threads.
    pub fn start(policies: ClientPolicies, open: OpenClients, history: History) -> Self {
        let (sender, receiver) = watch::channel(Policies {
            open: policies,
            closed: ClientPolicies::default(),
        });
        tokio::spawn(keep(receiver, open, history));
        Self(sender)
    }

    /// Replaces the policies after a reload. A listener that is closed keeps its own, for the connections that are open.
    pub fn replace(&self, policies: ClientPolicies) {
        self.0.send_modify(|all| all.replace_open(policies));
    }
}

/// Reads the lists at the start, after a reload and when a file changes: sessions of a previous process may be open that it did
/// not deny, and a file may have changed since the options were read.
async fn keep(mut policies: watch::Receiver<Policies>, open: OpenClients, history: History) {
    let mut watch = FileWatch::of_lists();
    let mut reader = ListReader::default();
    let mut is_change = false;
    loop {
        let current = policies.borrow_and_update().clone();
        let with_lists = current.open.with_lists();
        let closed = current.closed.with_lists();
        if with_lists.is_empty() && closed.is_empty() {
            // The old files would count as changed on every turn.
            watch.replace(Fingerprints::default());
            history.set_lists_read(Ok(()));
        } else {
            let mut files = Fingerprints::default();
            let read = reader.read_again(&with_lists, &mut files).await;
            // A listener that is gone needs its list no more.
            let _ = reader.read_again(&closed, &mut files).await;
            watch.replace(files);
            let is_read = read.is_ok();
            history.set_lists_read(read);
            let [connections, sessions] = end_denied(current, &open).await;
            let networks = |of: fn(&ClientAccess) -> usize| -> usize {
                with_lists.iter().map(|policy| of(policy)).sum()
            };
            if (is_change && is_read) || connections + sessions > 0 {
                tracing::info!(
                    denied = networks(|policy| policy.lists().denied()),
                    allowed = networks(|policy| policy.lists().allowed().unwrap_or(0)),
                    connections,
                    sessions,
                    "lists of clients read; connections and sessions of denied clients ended"
                );
            }
        }
        tokio::select! {
            changed = policies.changed() => match changed {
                Ok(()) => is_change = false,
                Err(_) => return,
            },
            () = watch.changed() => is_change = true,
            () = sleep(RETRY_INTERVAL), if reader.waits() => is_change = true,
        }
    }
}

/// Reads lists, each policy's on a thread of its own: one that hangs in a file system holds up the others for a moment
/// only.
#[derive(Default)]
struct ListReader {
    /// The policies whose lists have not been read in time, with their threads.
    hanging: Vec<(Arc<ClientAccess>, JoinHandle<PolicyRead>)>,
}

/// The files that were read, and what is wrong with them.
type PolicyRead = (Fingerprints, Result<(), String>);

impl ListReader {
    /// Reads all lists of these policies again. A list that is invalid stays as it was, and is logged.
    ///
    /// # Errors
    ///
    /// What is wrong with each list that is invalid, or could not be read in time.
    async fn read_again(
        &mut self,
        policies: &[Arc<ClientAccess>],
        files: &mut Fingerprints,
    ) -> Result<(), String> {
        self.hanging.retain(|(_, thread)| !thread.is_finished());
        let mut errors = Vec::new();
        let mut reading = Vec::new();
        for policy in policies {
            match self.hangs(policy) {
                true => errors.push(hanging(policy)),
                false => reading.push((Arc::clone(policy), begin_reading(policy))),
            }
        }
        let deadline = Instant::now() + READ_TIMEOUT;
        for (policy, mut thread) in reading {
            match timeout_at(deadline, &mut thread).await {
                Ok(Ok((read, result))) => {
                    files.extend(read);
                    errors.extend(result.err());
                }
                // It has panicked.
                Ok(Err(_)) => {}
                Err(_) => {
                    let error = hanging(&policy);
                    tracing::warn!("{error}; the lists of before stay in force, whole");
                    errors.push(error);
                    self.hanging.push((policy, thread));
                }
            }
        }
        // Several listeners may have the same list.
        errors.dedup();
        match errors.as_slice() {
            [] => Ok(()),
            _ => Err(errors.join("; ")),
        }
    }

    /// Whether a policy waits for its lists: its files are not watched meanwhile.
    fn waits(&self) -> bool {
        !self.hanging.is_empty()
    }

    fn hangs(&self, policy: &Arc<ClientAccess>) -> bool {
        let mut hanging = self.hanging.iter();
        hanging.any(|(hanging, _)| Arc::ptr_eq(hanging, policy))
    }
}

/// What is wrong with lists that have not been read in time.
fn hanging(policy: &ClientAccess) -> String {
    let files: Vec<_> = policy.files().map(Path::to_string_lossy).collect();
    let files = files.join(", ");
    format!("{files}: not read within {READ_TIMEOUT:?}: the file system hangs")
}

fn begin_reading(policy: &Arc<ClientAccess>) -> JoinHandle<PolicyRead> {
    let policy = Arc::clone(policy);
    spawn_blocking(move || {
        let mut files = Fingerprints::default();
        files.note_all(policy.files().map(Path::new));
        let read = policy.reread().map_err(|error| {
            tracing::warn!("{error}; the lists of before stay in force, whole");
            error.to_string()
        });
        (files, read)
    })
}

/// Ends the connections and sessions of denied clients, and returns how many.
async fn end_denied(policies: Policies, open: &OpenClients) -> [usize; 2] {
    let is_denied = Arc::clone(&open.is_denied);
    let is_denied = move |entry: &ConnectionEntry| {
        let policy = policies.of_tcp(entry.listener().0);
        policy.is_some_and(|policy| is_denied(entry, policy))
    };
    [
        open.connections.end_denied(Arc::new(is_denied)).await,
        open.sessions.revoke().await,
    ]
}

/// A file system in the network answers within a second, or not at all.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a list that hung is read again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
