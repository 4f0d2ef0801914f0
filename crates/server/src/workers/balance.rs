//! Balances connections over the workers by handing off accepted connections.
//!
//! The kernel distributes connections by a hash of their addresses (SO_REUSEPORT), whatever load a worker has. One
//! worker may then have a queue while another sleeps, or have more than its share of long-lived connections for good.
//! So a worker that has more connections than another hands off those it accepts.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{
    Receiver, Sender, UnboundedReceiver, UnboundedSender, WeakSender, channel, unbounded_channel,
};

use super::load::WorkerLoad;

/// Decides for one worker which connections `T` it keeps.
pub(crate) struct WorkerBalancer<T> {
    /// Its strong count is the number of open connections, plus one.
    open: Sender<()>,
    others: Vec<OtherWorker<T>>,
    /// The index of the worker to compare with next.
    next: Cell<usize>,
    pub(crate) load: Arc<WorkerLoad>,
}

struct OtherWorker<T> {
    open: WeakSender<()>,
    inbox: UnboundedSender<Handoff<T>>,
}

/// Counts a connection as open on the worker that serves it, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(
    #[expect(dead_code, reason = "it is counted by its sender")] Sender<()>,
);

/// A connection on its way to the worker that serves it.
pub(crate) type Handoff<T> = (T, ConnectionGuard);

/// The receivers of one worker.
pub(crate) struct Inbox<T> {
    /// Connections that other workers have accepted.
    pub(crate) handoffs: UnboundedReceiver<Handoff<T>>,
    /// Closed once the balancer is dropped and the last connection has ended.
    pub(crate) all_closed: Receiver<()>,
}

/// Creates a balancer and an inbox for each worker.
pub(crate) fn balancers<T>(workers: usize) -> Vec<(WorkerBalancer<T>, Inbox<T>)> {
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| {
            let (open, all_closed) = channel(1);
            let (inbox, handoffs) = unbounded_channel();
            (
                (open, inbox),
                Inbox {
                    handoffs,
                    all_closed,
                },
            )
        })
        .unzip();
    let balancer = |own: usize| WorkerBalancer {
        open: senders[own].0.clone(),
        others: (1..workers)
            .map(|step| &senders[(own + step) % workers])
            .map(|(open, inbox)| OtherWorker {
                open: open.downgrade(),
                inbox: inbox.clone(),
            })
            .collect(),
        next: Cell::new(0),
        load: Arc::default(),
    };
    (0..workers).map(balancer).zip(inboxes).collect()
}

impl<T> WorkerBalancer<T> {
    /// Hands the connection off to another worker that has clearly fewer connections; otherwise returns it, to be served
    /// on this worker.
    pub(crate) fn hand_off(&self, connection: T) -> Option<Handoff<T>> {
        let keep = |connection| Some((connection, ConnectionGuard(self.open.clone())));
        let Some(other) = self.less_busy() else {
            return keep(connection);
        };
        let Some(open) = other.open.upgrade() else {
            return keep(connection);
        };
        match other.inbox.send((connection, ConnectionGuard(open))) {
            Ok(()) => {
                self.load.count_handoff();
                None
            }
            // That worker is draining.
            Err(SendError((connection, _))) => keep(connection),
        }
    }

    /// Returns another worker if it has clearly fewer connections. Compares with one worker per call, in turn: comparing with
    /// all of many workers would cost more than it gains.
    fn less_busy(&self) -> Option<&OtherWorker<T>> {
        let next = self.next.get();
        let other = self.others.get(next)?;
        self.next.set((next + 1) % self.others.len());
        let theirs = other.open.strong_count();
        (self.open.strong_count() > theirs + MAX_IMBALANCE).then_some(other)
    }
}

/// A smaller difference is not worth a handoff, which costs a wake-up of the other worker.
const MAX_IMBALANCE: usize = 4;

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    /// Dispatches connections through one balancer, adds to `kept` those that it keeps, and returns how many these are.
    fn dispatch<T: Default>(
        balancer: &WorkerBalancer<T>,
        connections: usize,
        kept: &mut Vec<Handoff<T>>,
    ) -> usize {
        let before = kept.len();
        kept.extend((0..connections).filter_map(|_| balancer.hand_off(T::default())));
        kept.len() - before
    }

    #[test]
    fn busier_worker_hands_off_until_both_have_about_as_many() {
        let mut workers = balancers::<()>(2);
        let (second, mut to_second) = workers.pop().expect("two");
        let (first, mut to_first) = workers.pop().expect("two");
        let (mut here, mut there) = (Vec::new(), Vec::new());
        assert_eq!(dispatch(&first, 100, &mut here), 50 + MAX_IMBALANCE / 2);
        while let Ok(handoff) = to_second.handoffs.try_recv() {
            there.push(handoff);
        }
        assert_eq!(there.len(), 50 - MAX_IMBALANCE / 2);
        assert_eq!(
            dispatch(&second, MAX_IMBALANCE, &mut there),
            MAX_IMBALANCE,
            "it has fewer"
        );
        here.clear();
        assert_eq!(
            dispatch(&second, 20, &mut there),
            0,
            "the first has none left"
        );
        assert_eq!(to_first.handoffs.len(), 20);
        assert!(to_first.handoffs.try_recv().is_ok());
    }

    #[test]
    fn every_other_worker_gets_its_share() {
        let workers = balancers::<()>(4);
        let mut here = Vec::new();
        let kept = dispatch(&workers[1].0, 400, &mut here);
        let handoffs = [0, 2, 3].map(|other| workers[other].1.handoffs.len());
        assert!(
            handoffs.iter().all(|&n| n.abs_diff(100) <= MAX_IMBALANCE),
            "{handoffs:?}"
        );
        assert!(kept.abs_diff(100) <= MAX_IMBALANCE, "{kept}");
    }

    #[test]
    fn draining_or_exited_worker_gets_no_handoff() {
        for has_exited in [false, true] {
            let mut workers = balancers::<()>(2);
            let (other, mut inbox) = workers.pop().expect("two");
            if has_exited {
                drop((other, inbox));
            } else {
                inbox.handoffs.close();
            }
            assert_eq!(dispatch(&workers[0].0, 50, &mut Vec::new()), 50);
        }
    }

    #[tokio::test]
    async fn handoff_in_flight_keeps_a_worker_open() {
        let mut workers = balancers::<()>(2);
        let (other, mut inbox) = workers.pop().expect("two");
        let mut here = Vec::new();
        dispatch(&workers[0].0, MAX_IMBALANCE + 2, &mut here);
        drop((other, here));
        let handoff = inbox.handoffs.recv().await.expect("one was handed off");
        assert!(
            inbox
                .all_closed
                .try_recv()
                .is_err_and(|error| error == TryRecvError::Empty)
        );
        drop(handoff);
        assert_eq!(inbox.all_closed.recv().await, None);
    }
}
