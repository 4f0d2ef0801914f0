use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use peername_sys::tcp::listener::shrink_backlog;

use super::*;
use crate::header_waiter::ready_connection::{MAX_UNANSWERED, MIN_PATIENCE};
use crate::header_waiter::ready_connections::tests::{admitted, listener_addr};
use crate::header_waiter::sweeper::tests::new_table;

/// A listener with a full accept backlog, and a ready connection of it, for which it was woken.
struct FullBacklog {
    waiter: HeaderWaiter,
    client: TcpStream,
    listener: TcpListener,
    _in_backlog: TcpStream,
}

impl FullBacklog {
    fn new() -> Self {
        let table = new_table();
        let mut waiter = HeaderWaiter::new(table, Duration::from_secs(1), None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener_addr(&listener, table.settings());
        waiter.note_listener(&listener, at);
        let client = TcpStream::connect(at.addr).unwrap();
        let (connection, _) = listener.accept().unwrap();
        shrink_backlog(&listener).unwrap();
        let in_backlog = TcpStream::connect(at.addr).unwrap();

        let ready = ReadyConnection::new(admitted(connection, Counter::Accepted));
        waiter.ready.entry(at).or_default().push_back(ready);
        waiter.wake_listener(at);
        Self {
            waiter,
            client,
            listener,
            _in_backlog: in_backlog,
        }
    }
}

/// The kernel retries the first SYN after 1, 3, 7, 15 and 31 seconds.
#[test]
fn listener_that_does_not_answer_is_asked_again_after_a_while() {
    let FullBacklog {
        mut waiter,
        listener: _listener,
        _in_backlog,
        ..
    } = FullBacklog::new();
    for (since, expected) in [(WAKE_AGAIN_AFTER, 1), (UNANSWERED_AFTER, 2)] {
        for wakeup in waiter.wakeups.values_mut() {
            wakeup.opened_at -= since;
        }
        for ready in waiter.ready.values_mut().flatten() {
            ready.woken = ready.woken.map(|at| at - since);
        }
        waiter.wake_again();
        assert_eq!(waiter.wakeups.len(), expected);
    }
}

#[test]
fn listener_that_never_answers_is_given_up() {
    let FullBacklog {
        mut waiter,
        mut client,
        listener,
        _in_backlog,
        ..
    } = FullBacklog::new();
    waiter.refuse_unanswered(Instant::now());
    assert_eq!(waiter.counts(), (0, 1));
    let at = listener_addr(&listener, waiter.table.settings());
    waiter.note_reachable(at);
    waiter.refuse_unanswered(Instant::now() + MAX_UNANSWERED);
    assert_eq!(waiter.counts(), (0, 1));
    waiter.note_unanswered(at, Instant::now());
    waiter.refuse_unanswered(Instant::now() + MAX_UNANSWERED);
    assert_eq!(waiter.counts(), (0, 0));
    let refusals = waiter
        .table
        .settings()
        .counter(Counter::ListenerUnreachable);
    assert_eq!(refusals, 1);
    let end = client.read(&mut [0]).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
}

/// The listener is that of a process that hangs.
#[test]
fn wakeup_in_a_backlog_that_does_not_move_is_replaced_more_and_more_rarely() {
    let table = new_table();
    let mut waiter = HeaderWaiter::new(table, Duration::from_secs(1), None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener_addr(&listener, table.settings());
    waiter.note_listener(&listener, at);
    let _client = TcpStream::connect(at.addr).unwrap();
    let (connection, _) = listener.accept().unwrap();
    let ready = ReadyConnection::new(admitted(connection, Counter::Accepted));
    waiter.ready.entry(at).or_default().push_back(ready);
    waiter.wake_listener(at);
    for (passed, missed) in [
        (WAKE_AGAIN_AFTER, 0),
        (MIN_PATIENCE, 1),
        (MIN_PATIENCE, 1),
        (MIN_PATIENCE, 2),
    ] {
        for wakeup in waiter.wakeups.values_mut() {
            wakeup.opened_at -= passed;
        }
        for ready in waiter.ready.values_mut().flatten() {
            ready.woken = ready.woken.map(|at| at - passed);
        }
        waiter.wake_again();
        assert_eq!(waiter.wakeups.len(), 1);
        let ready = waiter.ready.values().flatten();
        assert_eq!(ready.map(|ready| ready.missed_wakeups).sum::<u32>(), missed);
    }
}

/// A process that accepts from another listener at the address is woken at once for each connection whose wake-up is lost.
#[test]
fn wakeups_that_were_passed_over_are_replaced() {
    let table = new_table();
    let mut waiter = HeaderWaiter::new(table, Duration::from_secs(1), None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener_addr(&listener, table.settings());
    waiter.note_listener(&listener, at);
    let clients = [(); 3].map(|()| TcpStream::connect(at.addr).unwrap());
    for _ in &clients {
        let (connection, _) = listener.accept().unwrap();
        let ready = ReadyConnection::new(admitted(connection, Counter::Accepted));
        waiter.ready.entry(at).or_default().push_back(ready);
        waiter.wake_listener(at);
    }
    for wakeup in waiter.wakeups.values_mut() {
        wakeup.opened_at -= WAKE_AGAIN_AFTER;
    }
    for ready in waiter.ready.values_mut().flatten() {
        ready.woken = ready.woken.map(|at| at - WAKE_AGAIN_AFTER);
    }
    let lost: Vec<u64> = waiter.wakeups.keys().copied().collect();
    waiter.note_accepted(at, Instant::now());
    waiter.wake_again();
    assert_eq!(waiter.wakeups.len(), 3);
    assert!(lost.iter().all(|id| !waiter.wakeups.contains_key(id)));
}
