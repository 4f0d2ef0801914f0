//! Clients that make requests without a pause while the test changes what serves them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use crate::harness::lab::wait_until;

/// What the clients have done so far.
#[derive(Debug, Default)]
pub(crate) struct Load {
    served: AtomicUsize,
    is_over: AtomicBool,
}

/// Runs `test` while each of these clients makes one request after the other. A request that fails panics, and the test
/// fails. Returns how many requests were served.
#[track_caller]
pub(crate) fn under_load(
    clients: usize,
    request: impl Fn() + Sync,
    test: impl FnOnce(&Load),
) -> usize {
    let load = Load::default();
    thread::scope(|scope| {
        // The clients end also if the test fails.
        let end = SetOnDrop(&load.is_over);
        let client = || {
            while !load.is_over.load(Relaxed) {
                request();
                load.served.fetch_add(1, Relaxed);
            }
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        test(&load);
        drop(end);
        for client in clients {
            assert!(client.join().is_ok(), "a request failed, see above");
        }
    });
    load.served.into_inner()
}

impl Load {
    /// Waits until `more` further requests have been served.
    pub(crate) fn wait_served(&self, more: usize) {
        let before = self.served.load(Relaxed);
        wait_until("requests are served", || {
            self.served.load(Relaxed) >= before + more
        });
    }
}

/// Reads a number from an environment variable that can make a test run for long; returns this default without it.
pub(crate) fn number_from_env(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().expect("a number"))
}

/// Sets a flag when dropped, so that threads beside a test end also if the test fails.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
