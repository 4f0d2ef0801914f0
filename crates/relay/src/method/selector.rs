//! Selects copy or splice for a direction by the sizes of its reads.
//!
//! Splicing saves two copies of every byte, and costs some work per page, and a system call that finds nothing more to read:
//! unlike a read, splice(2) does not tell that nothing is left. So it pays for bulk and not for messages. A connection may
//! carry both (a login, then a download), so every read is counted.

use super::Method;

/// Selects the method for one direction.
#[derive(Debug)]
pub(crate) struct MethodSelector {
    is_splicing: bool,
    /// Whether the caller chose the method, so that the sizes of reads don't matter.
    is_fixed: bool,
    /// Reads in favour of switching minus reads against it; never below 0.
    votes: u8,
}

impl MethodSelector {
    pub(crate) fn new(method: Method) -> Self {
        Self {
            is_splicing: method == Method::Splice,
            is_fixed: method != Method::Auto,
            votes: 0,
        }
    }

    /// Whether the next read goes through a pipe.
    pub(crate) fn is_splicing(&self) -> bool {
        self.is_splicing
    }

    /// Counts a read of `n` bytes.
    pub(crate) fn record_read(&mut self, n: usize) {
        if self.is_fixed {
            return;
        }
        let favours_switch = if self.is_splicing {
            n < SMALL_READ_BYTES
        } else {
            n >= BULK_READ_BYTES
        };
        self.votes = if favours_switch {
            self.votes + 1
        } else {
            self.votes.saturating_sub(1)
        };
        if self.votes == VOTES_TO_SWITCH {
            self.is_splicing = !self.is_splicing;
            self.votes = 0;
        }
    }

    /// Fixes the method to copy: the kernel can't splice from this socket.
    pub(crate) fn force_copy(&mut self) {
        *self = Self::new(Method::Copy);
    }
}

/// A read of at least this size is bulk: below it, copying costs less than another system call.
const BULK_READ_BYTES: usize = 8 * 1024;
/// A spliced read below this size is a vote for copying. Lower than [`BULK_READ_BYTES`], so that a direction with
/// reads between the two does not flap (hysteresis).
const SMALL_READ_BYTES: usize = 2 * 1024;
/// The majority of reads that switches between copy and splice.
const VOTES_TO_SWITCH: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn is_splicing_after(method: Method, sizes: &[usize]) -> bool {
        let mut selector = MethodSelector::new(method);
        sizes.iter().for_each(|&n| selector.record_read(n));
        selector.is_splicing()
    }

    #[test]
    fn bulk_is_spliced_and_messages_are_copied() {
        assert!(!is_splicing_after(Method::Auto, &[64; 100]));
        assert!(!is_splicing_after(Method::Auto, &[65536; 3]));
        assert!(is_splicing_after(Method::Auto, &[65536; 4]));
        assert!(
            is_splicing_after(Method::Auto, &[65536, 65536, 64, 65536, 65536, 65536]),
            "one small read"
        );
        assert!(
            !is_splicing_after(Method::Auto, &[65536, 65536, 65536, 65536, 64, 64, 64, 64]),
            "back again"
        );
        assert!(is_splicing_after(
            Method::Auto,
            &[65536, 65536, 65536, 65536, 4096, 4096, 4096, 4096]
        ));
    }

    #[test]
    fn a_fixed_method_ignores_sizes() {
        assert!(!is_splicing_after(Method::Copy, &[65536; 100]));
        assert!(is_splicing_after(Method::Splice, &[64; 100]));
    }
}
