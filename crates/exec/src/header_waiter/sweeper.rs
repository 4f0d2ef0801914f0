//! Frees the table's slots of closed sockets: when a sweep is due, and when there is no free slot for a connection.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use peername_identity::{SocketQueries as _, Table};

use crate::sockets::{ProgramSocket, open_keys};

/// Sweeps the table, and limits how often. The processes of the program, which may be compromised, have the table and request
/// sweeps, and a sweep takes the longer the more sockets are open.
#[derive(Debug)]
pub(super) struct Sweeper {
    table: Table<'static>,
    /// Until when a connection without a free slot is no reason for a sweep.
    paused_until: Instant,
    /// The time that requested sweeps have taken, with a pause as long as each, laid end to end. Requests wait while it is further
    /// ahead than [`REQUEST_BURST`].
    requests_paid_until: Instant,
    /// Whether a requested sweep waits.
    is_requested: bool,
}

impl Sweeper {
    pub(super) fn new(table: Table<'static>) -> Self {
        let now = Instant::now();
        Self {
            table,
            paused_until: now,
            requests_paid_until: now,
            is_requested: false,
        }
    }

    /// Requests a sweep: now, or after a pause if requested sweeps have taken much of the time.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
        self.sweep_if_requested();
    }

    /// Sweeps if that was requested, unless requests are paused.
    pub(super) fn sweep_if_requested(&mut self) {
        let start = Instant::now();
        if !self.is_requested || start + REQUEST_BURST < self.requests_paid_until {
            return;
        }
        self.sweep();
        self.requests_paid_until = paid_until(self.requests_paid_until, start, start.elapsed());
    }

    /// When [`Sweeper::sweep_if_requested`] must be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let pause_end = self.requests_paid_until.checked_sub(REQUEST_BURST);
        self.is_requested.then_some(pause_end).flatten()
    }

    /// Frees the slots of closed sockets, which also serves a request.
    ///
    /// Only sockets of the calling thread's network namespace are checked, which must be that of the table's policy.
    fn sweep(&mut self) {
        self.is_requested = false;
        let policy = self.table.settings().policy();
        let mut closed: Vec<_> = self
            .table
            .occupied_slots()
            .filter(|slot| policy.namespace != 0 && slot.namespace == policy.namespace)
            .collect();
        // A list may omit a socket if another one is closed meanwhile, but two lists do not omit the same one. If the kernel
        // can't list the sockets, nothing is freed until the next sweep.
        for _ in 0..LISTS {
            if closed.is_empty() {
                break;
            }
            match open_keys(policy.listing) {
                Ok(open) => closed.retain(|slot| !open.contains(&slot.key)),
                Err(_) => closed.clear(),
            }
        }
        for slot in closed {
            self.table.remove(slot);
        }
        self.table.settings().schedule_sweep();
    }

    /// Sweeps if the table has no free slot for this connection: since the last sweep connections may have been closed, and the
    /// next one may not be due yet. Does nothing for a while after such a sweep, because with a table whose clients stay, each
    /// further connection would cost a list of all sockets.
    pub(super) fn sweep_if_full(&mut self, connection: BorrowedFd<'_>) {
        let start = Instant::now();
        if start < self.paused_until || !self.is_full_for(connection) {
            return;
        }
        self.sweep();
        let end = Instant::now();
        self.paused_until = end + pause_after(end - start);
    }

    /// Whether all slots are occupied in which this connection's client could be stored.
    fn is_full_for(&self, connection: BorrowedFd<'_>) -> bool {
        let settings = self.table.settings();
        // In a table that is less than a quarter full, it is unlikely that all slots of a probe window are occupied.
        if settings.used() < self.table.slots() as u64 / 4 {
            return false;
        }
        let socket = ProgramSocket(connection);
        let listing = settings.policy().listing;
        let key = listing.key(&socket, socket.is_multipath());
        key.is_some_and(|key| self.table.needs_sweep_for(key))
    }
}

/// The pause after a sweep that took the time `took`.
fn pause_after(took: Duration) -> Duration {
    MIN_PAUSE.max(took * PAUSE_FACTOR)
}

/// A slot is freed if its socket is missing in this number of lists of the open sockets.
const LISTS: usize = 2;
/// Short, so that a client that is refused meanwhile can soon try again.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// With this factor, these sweeps take a twentieth of the supervisor's time at most, however many sockets there are.
const PAUSE_FACTOR: u32 = 20;
/// In the long run requested sweeps take half of the supervisor's time at most. A busy program with a small table needs many
/// sweeps in a second, and has them at once for this time.
const REQUEST_BURST: Duration = Duration::from_millis(500);

/// Until when sweeps are paid for after one that took so long: with a pause of the same length.
fn paid_until(before: Instant, start: Instant, took: Duration) -> Instant {
    before.max(start) + took * 2
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicU64;

    use peername_identity::{Identity, Policy, SocketListing, SocketQueries, SourcePolicy};

    use super::*;

    #[test]
    fn full_table_is_swept_once_in_a_while() {
        let mut sweeper = Sweeper::new(new_table());
        let settings = sweeper.table.settings();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();

        fill(sweeper.table);
        let start = Instant::now();
        sweeper.sweep_if_full(connection.as_fd());
        assert_eq!(settings.used(), 0);
        assert!(sweeper.paused_until >= start + MIN_PAUSE);

        fill(sweeper.table);
        sweeper.paused_until = start + Duration::from_secs(3600);
        sweeper.sweep_if_full(connection.as_fd());
        assert_eq!(settings.used(), SLOTS);

        sweeper.paused_until = start;
        sweeper.sweep_if_full(connection.as_fd());
        assert_eq!(settings.used(), 0);
    }

    /// A process of the program can send any number of requests, and can make the table look as if a sweep were due.
    #[test]
    fn requested_sweeps_leave_time_for_other_work() {
        let mut sweeper = Sweeper::new(new_table());
        let settings = sweeper.table.settings();
        fill(sweeper.table);
        let start = Instant::now();
        sweeper.request();
        assert_eq!(settings.used(), 0);
        assert!(sweeper.requests_paid_until > start);
        assert_eq!(sweeper.next_deadline(), None);

        fill(sweeper.table);
        let later = start + Duration::from_secs(3600);
        sweeper.requests_paid_until = later + REQUEST_BURST;
        sweeper.request();
        sweeper.sweep_if_requested();
        assert_eq!(settings.used(), SLOTS);
        assert_eq!(sweeper.next_deadline(), Some(later));

        sweeper.requests_paid_until = start;
        sweeper.sweep_if_requested();
        assert_eq!(settings.used(), 0);
        assert_eq!(sweeper.next_deadline(), None);
    }

    #[test]
    fn requested_sweep_is_paid_for_with_a_pause_of_its_length() {
        let (now, took) = (Instant::now(), Duration::from_millis(40));
        assert_eq!(paid_until(now, now, took), now + took * 2);
        assert_eq!(paid_until(now, now + took, took), now + took * 3);
        assert_eq!(paid_until(now + took, now, took), now + took * 3);
    }

    #[test]
    fn pause_grows_with_the_time_that_a_sweep_takes() {
        let pauses = [1, 50, 51, 1000].map(|took| pause_after(Duration::from_millis(took)));
        assert_eq!(
            pauses.map(|pause| pause.as_millis()),
            [1000, 1000, 1020, 20_000]
        );
    }

    pub(in crate::header_waiter) fn new_table() -> Table<'static> {
        let words = Table::size(64) / 8;
        let memory: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let table = Table::new(memory.leak()).unwrap();
        let policy = Policy {
            header_required: true,
            all_ports: true,
            sources: SourcePolicy::Any,
            max_header: 4096,
            namespace: NAMESPACE,
            listing: SocketListing::DiagWithoutMultipath,
            ..Policy::default()
        };
        table.settings().write(policy, &[], [0, 0]);
        table
    }

    /// Stores a client of a closed socket in each slot.
    fn fill(table: Table<'_>) {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let identity = Identity {
            client: addr,
            destination: addr,
            namespace: NAMESPACE,
        };
        for number in 0..SLOTS {
            let socket = ClosedSocket((1 << 40) + number);
            table.store(&socket, false, addr, &identity).unwrap();
        }
    }

    /// A socket with a cookie that the kernel gives to no socket during the test.
    struct ClosedSocket(u64);

    impl SocketQueries for ClosedSocket {
        fn cookie(&self) -> Option<u64> {
            Some(self.0)
        }

        fn inode(&self) -> Option<u64> {
            None
        }

        fn is_multipath(&self) -> bool {
            false
        }
    }

    const SLOTS: u64 = 64;
    const NAMESPACE: u64 = 7;
}
