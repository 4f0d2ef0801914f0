//! Keeps the lists of clients in force: reads a file again when it changes, and ends the connections and sessions of clients
//! that the new list denies.
//!
//! This is not a reload. A ban must not depend on the rest of the configuration, nor wait for a name server; and there may be a
//! hundred of them an hour. It goes on while the process drains.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use peername_observe::admin::history::History;
use peername_proxy::udp::OpenSessions;
use peername_server::access::clients::ClientAccess;
use peername_server::workers::connections::{ConnectionEntry, OpenConnections};
use peername_sys::Transport;
use peername_sys::throttle::RepeatThrottle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

use super::file_watch::{FileWatch, Fingerprints, ReadCause};
use crate::listeners::{BoundAddresses, ListenerKey};

/// The policy of each listener, by the address that it is bound to.
#[derive(Clone, Debug, Default)]
pub struct ClientPolicies(HashMap<ListenerKey, Arc<ClientAccess>>);

/// The policies in force, which a reload replaces, and their lists, which are read again when a file changes.
pub struct ClientLists(watch::Sender<Policies>);

#[derive(Clone, Debug, Default)]
struct Policies {
    open: ClientPolicies,
    /// The policies of listeners that a reload has closed, for connections that are still open.
    closed: ClientPolicies,
    /// The policies that reloads have replaced. A connection that waits for its header is judged by the one that it was
    /// accepted with, even if its listener was closed and another one has the address now.
    replaced: Vec<Weak<ClientAccess>>,
}

/// The open connections and sessions to which the lists apply.
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

    /// The policies that have lists, each once.
    fn with_lists(&self) -> Vec<Arc<ClientAccess>> {
        unique_with_lists(self.0.values().cloned())
    }
}

fn unique_with_lists(policies: impl Iterator<Item = Arc<ClientAccess>>) -> Vec<Arc<ClientAccess>> {
    let mut unique = Vec::<Arc<ClientAccess>>::new();
    for policy in policies.filter(|policy| policy.has_lists()) {
        if !unique.iter().any(|known| Arc::ptr_eq(known, &policy)) {
            unique.push(policy);
        }
    }
    unique
}

impl Policies {
    fn replace_open(&mut self, policies: ClientPolicies) {
        let before = std::mem::replace(&mut self.open, policies);
        self.replaced.retain(|policy| policy.strong_count() > 0);
        self.replaced
            .extend(before.with_lists().iter().map(Arc::downgrade));
        self.closed.0.extend(before.0);
        self.closed
            .0
            .retain(|key, _| !self.open.0.contains_key(key));
    }

    /// The policies with lists that no new connection gets, each once: those of closed listeners, and replaced ones that are
    /// still in use.
    fn earlier_with_lists(&self) -> Vec<Arc<ClientAccess>> {
        let closed = self.closed.0.values().cloned();
        let replaced = self.replaced.iter().filter_map(Weak::upgrade);
        unique_with_lists(closed.chain(replaced))
    }

    fn find_tcp(&self, listener: SocketAddr) -> Option<&ClientAccess> {
        let key = (Transport::Tcp, listener);
        let policy = self.open.0.get(&key);
        policy.or_else(|| self.closed.0.get(&key)).map(Arc::as_ref)
    }
}

impl ClientLists {
    /// Begins to keep these policies in force, and reports failed reads to `history`. Call it after privileges are dropped,
    /// because each thread has its own.
    pub fn start(policies: ClientPolicies, open: OpenClients, history: History) -> Self {
        let (sender, receiver) = watch::channel(Policies {
            open: policies,
            ..Policies::default()
        });
        let keeper = Keeper {
            open,
            history,
            watch: FileWatch::of_lists(),
            reader: ListReader::default(),
            failures: RepeatThrottle::default(),
        };
        tokio::spawn(keeper.keep_in_force(receiver));
        Self(sender)
    }

    /// Replaces the policies after a reload. The policy of a closed listener stays in force for its open connections.
    pub fn replace(&self, policies: ClientPolicies) {
        self.0.send_modify(|all| all.replace_open(policies));
    }
}

/// Reads the lists, and ends the connections and sessions that they deny.
struct Keeper {
    open: OpenClients,
    history: History,
    watch: FileWatch,
    reader: ListReader,
    /// Throttles the log of failures of reads that are tried again.
    failures: RepeatThrottle,
}

impl Keeper {
    /// Reads the lists after a reload, when a file changes, and at the start: a file may have changed since the options were
    /// read, and sessions of a previous process may be open that its lists did not deny.
    async fn keep_in_force(mut self, mut policies: watch::Receiver<Policies>) {
        let mut cause = None;
        loop {
            let current = policies.borrow_and_update().clone();
            self.bring_into_force(current, cause).await;
            tokio::select! {
                changed = policies.changed() => match changed {
                    Ok(()) => cause = None,
                    Err(_) => return,
                },
                why = self.watch.changed() => cause = Some(why),
                () = sleep(HANG_RETRY), if self.reader.is_waiting() => {
                    cause = Some(ReadCause::Retry);
                }
            }
        }
    }

    /// Reads the lists of these policies; `cause` is `None` at the start and after a reload. Keeps no reference to the
    /// policies, so that a replaced one is dropped with its last connection.
    async fn bring_into_force(&mut self, current: Policies, cause: Option<ReadCause>) {
        let in_use = current.open.with_lists();
        let earlier = current.earlier_with_lists();
        if in_use.is_empty() && earlier.is_empty() {
            // Otherwise the old files would still be watched, and count as changed again and again.
            self.watch.replace(Fingerprints::default());
            self.history.set_lists_read(Ok(()));
            return;
        }
        let mut files = Fingerprints::default();
        let errors = self.reader.read_again(&in_use, &mut files).await;
        let errors_of_earlier = self.reader.read_again(&earlier, &mut files).await;
        self.log_failures([&errors[..], &errors_of_earlier].concat(), cause);
        let is_read = errors.is_empty() && !files.is_incomplete();
        self.watch.replace(files);
        // An error in the list of a closed listener is in the log alone: no new client needs the list.
        self.history.set_lists_read(match errors.as_slice() {
            [] => Ok(()),
            _ => Err(errors.join("; ")),
        });
        let [connections, sessions] = end_denied(current, &self.open).await;
        let denied: usize = in_use.iter().map(|policy| policy.lists().denied()).sum();
        let allowed: usize = in_use
            .iter()
            .map(|policy| policy.lists().allowed().unwrap_or(0))
            .sum();
        if (cause.is_some() && is_read) || connections + sessions > 0 {
            let ended = if connections + sessions > 0 {
                "; connections and sessions of denied clients ended"
            } else {
                ""
            };
            tracing::info!(
                denied,
                allowed,
                connections,
                sessions,
                "lists of clients read{ended}"
            );
        }
    }

    /// Logs each error once. The errors of a retry are logged if they differ from the last ones, otherwise from time to time.
    fn log_failures(&mut self, mut errors: Vec<String>, cause: Option<ReadCause>) {
        if errors.is_empty() {
            return self.failures.clear();
        }
        errors.sort();
        errors.dedup();
        let passes = self.failures.passes(&errors.join("; "));
        if passes || cause != Some(ReadCause::Retry) {
            for error in errors {
                tracing::warn!("{error}; the previous lists stay in force");
            }
        }
    }
}

/// Reads lists, each policy's on a thread of its own, so that a file system that hangs delays the other lists by
/// [`READ_TIMEOUT`] at most.
#[derive(Default)]
struct ListReader {
    /// The policies whose lists have not been read in time, with their threads.
    hanging: Vec<(Arc<ClientAccess>, JoinHandle<PolicyRead>)>,
}

/// The files of a policy as they were read, and what is wrong with its lists.
type PolicyRead = (Fingerprints, Result<(), String>);

impl ListReader {
    /// Reads all lists of these policies again. Returns all reasons why a list is invalid, or was not read in time; the
    /// previous list then stays in force.
    async fn read_again(
        &mut self,
        policies: &[Arc<ClientAccess>],
        files: &mut Fingerprints,
    ) -> Vec<String> {
        self.hanging.retain(|(_, thread)| !thread.is_finished());
        let mut errors = Vec::new();
        let mut reading = Vec::new();
        for policy in policies {
            if self.is_hanging(policy) {
                errors.push(hang_error(policy));
            } else {
                reading.push((Arc::clone(policy), begin_reading(policy)));
            }
        }
        let deadline = Instant::now() + READ_TIMEOUT;
        for (policy, mut thread) in reading {
            match timeout_at(deadline, &mut thread).await {
                Ok(Ok((read, result))) => {
                    files.extend(read);
                    errors.extend(result.err());
                }
                // The thread has panicked.
                Ok(Err(_)) => {}
                Err(_) => {
                    errors.push(hang_error(&policy));
                    self.hanging.push((policy, thread));
                }
            }
        }
        // Several listeners may have the same list.
        errors.sort();
        errors.dedup();
        errors
    }

    /// Whether a policy still waits for its lists. Its files are not watched then.
    fn is_waiting(&self) -> bool {
        !self.hanging.is_empty()
    }

    fn is_hanging(&self, policy: &Arc<ClientAccess>) -> bool {
        let mut hanging = self.hanging.iter();
        hanging.any(|(hanging, _)| Arc::ptr_eq(hanging, policy))
    }
}

/// The error about lists that have not been read in time.
fn hang_error(policy: &ClientAccess) -> String {
    let files: Vec<_> = policy.files().map(Path::to_string_lossy).collect();
    let files = files.join(", ");
    format!("{files}: not read within {READ_TIMEOUT:?}: the file system hangs")
}

fn begin_reading(policy: &Arc<ClientAccess>) -> JoinHandle<PolicyRead> {
    let policy = Arc::clone(policy);
    spawn_blocking(move || {
        let mut files = Fingerprints::default();
        let read = files.note_read(|files| {
            files.note_all(policy.files());
            policy.reread().map_err(|error| error.to_string())
        });
        (files, read)
    })
}

/// Ends the connections and sessions of denied clients, and returns the number of each.
async fn end_denied(policies: Policies, open: &OpenClients) -> [usize; 2] {
    let is_denied = Arc::clone(&open.is_denied);
    let is_denied = move |entry: &ConnectionEntry| {
        let policy = policies.find_tcp(entry.listener().0);
        policy.is_some_and(|policy| is_denied(entry, policy))
    };
    [
        open.connections.end_denied(Arc::new(is_denied)).await,
        open.sessions.revoke().await,
    ]
}

/// A file system in the network answers within a second, or not at all.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time, the lists are read again for a policy that still waits.
const HANG_RETRY: Duration = Duration::from_secs(10);
