//! Which sessions may be left to the kernel.

use peername_kernel::udp::{Told, Usage};

use crate::udp::endpoints::Path;

/// How far a session's requests are alike.
#[derive(Debug)]
pub(crate) struct Steady {
    pub(crate) header: Box<[u8]>,
    pub(crate) path: Path,
    /// Requests in a row.
    pub(crate) alike: u32,
    /// How often it was otherwise.
    pub(crate) changes: u32,
    pub(crate) told: Option<Told>,
    /// What the kernel had done when it was asked last.
    pub(crate) known: Usage,
}

impl Steady {
    pub(crate) fn new(header: &[u8], path: &Path) -> Self {
        Self {
            header: header.into(),
            path: *path,
            alike: 1,
            changes: 0,
            told: None,
            known: Usage::default(),
        }
    }
}
