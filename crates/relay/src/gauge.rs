//! How many connections each method relays now. Each thread counts its own by plain stores, and a reader adds them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::active_method::ActiveMethod;

/// The number of connections that each method relays now, in the whole process.
pub fn connections_by_method() -> [(ActiveMethod, u64); ActiveMethod::ALL.len()] {
    let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    ActiveMethod::ALL.map(|method| {
        let count = threads
            .iter()
            .map(|thread| thread.0[method as usize].load(Relaxed))
            // A connection that ended on another thread than it began on leaves counts below zero, which wrap.
            .fold(0, u64::wrapping_add);
        (method, count)
    })
}

/// Counts a connection of this thread as relayed by `new`, and no longer by `old`.
pub(crate) fn change(old: Option<ActiveMethod>, new: Option<ActiveMethod>) {
    // `try_with` fails only while the thread is being destroyed.
    let _ = OWN_COUNTS.try_with(|counts| {
        let adjust = |method: ActiveMethod, by: i64| {
            let count = &counts.0[method as usize];
            count.store(count.load(Relaxed).wrapping_add_signed(by), Relaxed);
        };
        if let Some(old) = old {
            adjust(old, -1);
        }
        if let Some(new) = new {
            adjust(new, 1);
        }
    });
}

/// The counts of one thread, which alone writes them.
#[derive(Debug, Default)]
struct ThreadCounts([AtomicU64; ActiveMethod::ALL.len()]);

impl ThreadCounts {
    fn register() -> Arc<Self> {
        let counts = Arc::<Self>::default();
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(Arc::clone(&counts));
        counts
    }
}

static THREADS: Mutex<Vec<Arc<ThreadCounts>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN_COUNTS: Arc<ThreadCounts> = ThreadCounts::register();
}
