//! The ready connections: which one the program gets next.

use std::os::fd::AsFd as _;

use super::header_peek::{AdmittedConnection, close_with_reset, record};
use super::ready_connection::ReadyConnection;
use super::{HeaderWaiter, ListenerAddr};
use crate::client_judge::DeniedClient;

impl HeaderWaiter {
    /// Takes the oldest ready connection of this listener whose client may still connect, and refuses the older ones. After
    /// [`MAX_DENIED`] it returns `None`: the listener was woken for those that are left, and is woken again.
    pub(crate) fn take_ready(&mut self, listener: ListenerAddr) -> Option<AdmittedConnection> {
        for _ in 0..MAX_DENIED {
            let ReadyConnection {
                admitted,
                is_counted,
                ..
            } = self.pop_ready(listener)?;
            let connection = admitted.connection.as_fd();
            let judged = admitted.admission.judge(connection, self.judge.as_deref());
            if let Err(DeniedClient { client, reason }) = judged {
                // One that is counted as handed over is not counted again as refused, as in `refuse_ready`.
                if !is_counted {
                    record(self.table, connection, client, reason);
                }
                close_with_reset(admitted.connection);
                continue;
            }
            if let Some(counter) = admitted.admission.counter
                && !is_counted
            {
                self.table.settings().count(counter);
            }
            return Some(admitted);
        }
        None
    }

    fn pop_ready(&mut self, listener: ListenerAddr) -> Option<ReadyConnection> {
        let queue = self.ready.get_mut(&listener)?;
        let ready = queue.pop_front();
        if queue.is_empty() {
            self.ready.remove(&listener);
        }
        ready
    }

    /// Returns a ready connection after a failed handoff. It is the next to be taken, and its listener is woken.
    pub(crate) fn return_ready(&mut self, admitted: AdmittedConnection, listener: ListenerAddr) {
        let ready = ReadyConnection {
            is_counted: true,
            ..ReadyConnection::new(admitted)
        };
        self.ready.entry(listener).or_default().push_front(ready);
        self.wake_listener(listener);
    }
}

/// The connections that are refused at one attempt to take one. Each takes some 20 microseconds, so other calls wait for a
/// millisecond or two.
const MAX_DENIED: usize = 64;

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::rc::Rc;
    use std::time::Duration;

    use peername_identity::{Counter, Settings};

    use super::*;
    use crate::client_judge::{ClientJudge, ConnectionEnds};
    use crate::header_waiter::header_peek::Admission;
    use crate::header_waiter::sweeper::tests::new_table;

    /// Denies connections without a header.
    #[derive(Debug, Default)]
    struct HeaderJudge {
        denies: Cell<bool>,
    }

    impl ClientJudge for HeaderJudge {
        fn prepare(&self) {}

        fn judge(&self, ends: ConnectionEnds, header: Option<&[u8]>) -> Result<(), DeniedClient> {
            if self.denies.get() && header.is_none() {
                return Err(DeniedClient {
                    client: ends.peer,
                    reason: Counter::ClientNotAllowed,
                });
            }
            Ok(())
        }

        fn judge_again(
            &self,
            _: ConnectionEnds,
            _: Option<SocketAddr>,
        ) -> Result<(), DeniedClient> {
            Ok(())
        }

        fn has_stale_lists(&self) -> bool {
            false
        }
    }

    #[test]
    fn returned_connection_without_a_header_is_judged_by_its_peer_and_counted_once() {
        let (table, judge) = (new_table(), Rc::new(HeaderJudge::default()));
        let timeout = Duration::from_secs(1);
        let mut waiter = HeaderWaiter::new(table, timeout, Some(Rc::clone(&judge) as _)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener_addr(&listener, table.settings());
        waiter.note_listener(&listener, at);
        let _client = TcpStream::connect(at.addr).unwrap();
        let (connection, _) = listener.accept().unwrap();

        let ready = ReadyConnection::new(admitted(connection, Counter::PassedThrough));
        waiter.ready.entry(at).or_default().push_back(ready);
        let taken = waiter.take_ready(at).unwrap();
        waiter.return_ready(taken, at);
        judge.denies.set(true);
        assert!(waiter.take_ready(at).is_none());
        let counters = [Counter::PassedThrough, Counter::ClientNotAllowed];
        assert_eq!(
            counters.map(|counter| table.settings().counter(counter)),
            [1, 0]
        );
    }

    /// After a change of the list, thousands of connections may be denied.
    #[test]
    fn denied_connections_leave_time_for_other_work() {
        let (table, judge) = (new_table(), Rc::new(HeaderJudge::default()));
        judge.denies.set(true);
        let timeout = Duration::from_secs(1);
        let mut waiter = HeaderWaiter::new(table, timeout, Some(judge as _)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener_addr(&listener, table.settings());
        for counter in [Counter::PassedThrough; MAX_DENIED]
            .into_iter()
            .chain([Counter::Accepted])
        {
            let _client = TcpStream::connect(at.addr).unwrap();
            let (connection, _) = listener.accept().unwrap();
            let ready = ReadyConnection::new(admitted(connection, counter));
            waiter.ready.entry(at).or_default().push_back(ready);
        }
        assert!(waiter.take_ready(at).is_none());
        assert_eq!(waiter.counts(), (0, 1));
        assert!(waiter.take_ready(at).is_some());
    }

    pub(in crate::header_waiter) fn listener_addr(
        listener: &TcpListener,
        settings: Settings<'_>,
    ) -> ListenerAddr {
        ListenerAddr {
            addr: listener.local_addr().unwrap(),
            namespace: settings.policy().namespace,
            interface: 0,
        }
    }

    pub(in crate::header_waiter) fn admitted(
        connection: TcpStream,
        counter: Counter,
    ) -> AdmittedConnection {
        let admission = Admission {
            peer: connection.peer_addr().unwrap(),
            client: None,
            counter: Some(counter),
        };
        AdmittedConnection {
            connection: OwnedFd::from(connection).into(),
            admission,
        }
    }
}
