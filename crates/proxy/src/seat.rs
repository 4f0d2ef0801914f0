//! Which worker serves a connection.
//!
//! The kernel deals connections out by a hash of their addresses (SO_REUSEPORT), and does not look at what a
//! worker has already. One then has a queue while another sleeps, and of connections that stay, one has more
//! than its part for good. So a worker that has more than another hands on what it accepts.

use std::cell::Cell;

use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{
    Receiver, Sender, UnboundedReceiver, UnboundedSender, WeakSender, channel, unbounded_channel,
};

/// A worker's place among the others, through which they hand each other `T`.
pub(crate) struct Seat<T> {
    open: Sender<()>,
    others: Vec<Other<T>>,
    /// Who of them is looked at next.
    next: Cell<usize>,
}

struct Other<T> {
    open: WeakSender<()>,
    inbox: UnboundedSender<Handed<T>>,
}

/// What a connection holds of the worker that serves it, until it has ended.
#[derive(Debug)]
pub(crate) struct Open(#[expect(dead_code, reason = "it only has to be there")] Sender<()>);

/// What another worker has accepted.
pub(crate) type Handed<T> = (T, Open);

/// What comes to a worker by its seat.
pub(crate) struct Inbox<T> {
    /// Connections that others have accepted.
    pub(crate) handed: UnboundedReceiver<Handed<T>>,
    /// Ends when the seat is given up and the last connection has ended.
    pub(crate) all_closed: Receiver<()>,
}

/// For so many workers.
pub(crate) fn seats<T>(workers: usize) -> Vec<(Seat<T>, Inbox<T>)> {
    let (open, inboxes): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| {
            let (open, all_closed) = channel(1);
            let (inbox, handed) = unbounded_channel();
            ((open, inbox), Inbox { handed, all_closed })
        })
        .unzip();
    let seat = |ours: usize| Seat {
        open: open[ours].0.clone(),
        others: (1..workers)
            .map(|step| &open[(ours + step) % workers])
            .map(|(open, inbox)| Other {
                open: open.downgrade(),
                inbox: inbox.clone(),
            })
            .collect(),
        next: Cell::new(0),
    };
    (0..workers).map(seat).zip(inboxes).collect()
}

impl<T> Seat<T> {
    /// Hands the connection to another worker that has clearly fewer; else it comes back, to be served here.
    pub(crate) fn place(&self, connection: T) -> Option<Handed<T>> {
        let here = |connection| Some((connection, Open(self.open.clone())));
        let Some(other) = self.less_busy() else {
            return here(connection);
        };
        let Some(open) = other.open.upgrade() else {
            return here(connection);
        };
        match other.inbox.send((connection, Open(open))) {
            Ok(()) => None,
            // It accepts no more.
            Err(SendError((connection, _))) => here(connection),
        }
    }

    /// One other is looked at each time: with many workers, looking at all would cost more than it brings.
    fn less_busy(&self) -> Option<&Other<T>> {
        let next = self.next.get();
        let other = self.others.get(next)?;
        self.next.set((next + 1) % self.others.len());
        let theirs = other.open.strong_count();
        (self.open.strong_count() > theirs + SLACK).then_some(other)
    }
}

/// So many more are no reason to hand one on, which costs a wake-up.
const SLACK: usize = 4;

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    /// Places connections by one seat, and tells how many of them stayed there.
    fn stay<T: Default>(seat: &Seat<T>, connections: usize, kept: &mut Vec<Handed<T>>) -> usize {
        let before = kept.len();
        kept.extend((0..connections).filter_map(|_| seat.place(T::default())));
        kept.len() - before
    }

    #[test]
    fn one_that_has_more_hands_on_and_the_other_has_as_many_then() {
        let mut seats = seats::<()>(2);
        let (second, mut of_second) = seats.pop().expect("two");
        let (first, mut of_first) = seats.pop().expect("two");
        let (mut here, mut there) = (Vec::new(), Vec::new());
        assert_eq!(stay(&first, 100, &mut here), 50 + SLACK / 2);
        while let Ok(handed) = of_second.handed.try_recv() {
            there.push(handed);
        }
        assert_eq!(there.len(), 50 - SLACK / 2);
        assert_eq!(stay(&second, SLACK, &mut there), SLACK, "they have fewer");
        here.clear();
        assert_eq!(stay(&second, 20, &mut there), 0, "the first has none left");
        assert_eq!(of_first.handed.len(), 20);
        assert!(of_first.handed.try_recv().is_ok());
    }

    #[test]
    fn every_other_has_its_turn() {
        let seats = seats::<()>(4);
        let mut here = Vec::new();
        let stayed = stay(&seats[1].0, 400, &mut here);
        let handed = [0, 2, 3].map(|other| seats[other].1.handed.len());
        assert!(
            handed.iter().all(|&n| n.abs_diff(100) <= SLACK),
            "{handed:?}"
        );
        assert!(stayed.abs_diff(100) <= SLACK, "{stayed}");
    }

    #[test]
    fn who_accepts_no_more_is_handed_nothing() {
        for gone in [false, true] {
            let mut seats = seats::<()>(2);
            let (other, mut inbox) = seats.pop().expect("two");
            match gone {
                true => drop((other, inbox)),
                false => inbox.handed.close(),
            }
            assert_eq!(stay(&seats[0].0, 50, &mut Vec::new()), 50);
        }
    }

    #[tokio::test]
    async fn what_is_handed_on_keeps_a_worker_open() {
        let mut seats = seats::<()>(2);
        let (other, mut inbox) = seats.pop().expect("two");
        let mut here = Vec::new();
        stay(&seats[0].0, SLACK + 2, &mut here);
        drop((other, here));
        let handed = inbox.handed.recv().await.expect("one was handed on");
        assert!(
            inbox
                .all_closed
                .try_recv()
                .is_err_and(|error| error == TryRecvError::Empty)
        );
        drop(handed);
        assert_eq!(inbox.all_closed.recv().await, None);
    }
}
