//! Text in a static, written once.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering};

/// A buffer in a static, for text of fewer than `N` bytes.
#[derive(Debug)]
pub struct StaticText<const N: usize>([AtomicU8; N]);

impl<const N: usize> StaticText<N> {
    /// An empty buffer.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; N])
    }

    /// Writes the text, which ends before its first NUL. Returns false and writes nothing if it is too long.
    ///
    /// Several threads may write the same text at once; another text must not be written afterwards.
    pub fn write<'a>(&self, text: impl IntoIterator<Item = &'a u8> + Clone) -> bool {
        if text.clone().into_iter().count() >= N {
            return false;
        }
        for (to, &from) in self.0.iter().zip(text) {
            // A byte that is right already is not written: another thread may be reading it.
            if to.load(Ordering::Relaxed) != from {
                to.store(from, Ordering::Relaxed);
            }
        }
        true
    }

    /// The text; empty if none was written.
    pub fn get(&self) -> &CStr {
        let start = self.0.as_ptr().cast::<c_char>();
        // SAFETY: the last byte is never written, so there is a NUL; and no write during the read changes a byte.
        unsafe { CStr::from_ptr(start) }
    }
}
