//! How many connections each backend relays now. Each thread counts its own by plain stores, and a reader adds them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::Backend;

/// The number of connections that each backend relays now, in the whole process.
pub fn connections_by_backend() -> [(Backend, u64); Backend::ALL.len()] {
    let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    Backend::ALL.map(|backend| {
        let counts = threads
            .iter()
            .map(|thread| thread.0[backend as usize].load(Relaxed));
        (backend, counts.sum())
    })
}

/// Counts a connection of this thread as relayed by `new`, and no longer by `old`.
pub(crate) fn change(old: Option<Backend>, new: Option<Backend>) {
    // It fails only while the thread is being destroyed.
    let _ = OWN.try_with(|own| {
        let adjust = |backend: Backend, by: u64| {
            let count = &own.0[backend as usize];
            count.store(count.load(Relaxed).wrapping_add(by), Relaxed);
        };
        if let Some(old) = old {
            adjust(old, u64::MAX);
        }
        if let Some(new) = new {
            adjust(new, 1);
        }
    });
}

/// The counts of one thread, which alone writes them.
#[derive(Debug, Default)]
struct ThreadCounts([AtomicU64; Backend::ALL.len()]);

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
    static OWN: Arc<ThreadCounts> = ThreadCounts::register();
}
