//! Ids of connections and requests, by which a response, an audit line and the check service's log are correlated.

use std::fmt::{self, Display, Formatter};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The id of a connection or a request: unique in this process and, most likely, in all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(u64);

impl Id {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl Display for Id {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:08x}", *PROCESS, self.0)
    }
}

/// A random number for this process, from the random seed of the standard library's hash maps.
pub(super) static PROCESS: LazyLock<u32> =
    LazyLock::new(|| u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default());
