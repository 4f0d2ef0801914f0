//! Copy or splice, decided by the sizes of a direction's reads.
//!
//! Splicing saves two copies of every byte and costs a third system call and some work per page: it
//! pays for bulk and not for messages. What a connection carries changes (a login, then a
//! download), so the choice is looked at with every read.

use crate::Method;

/// The choice for one direction.
#[derive(Debug)]
pub(crate) struct Choice {
    splicing: bool,
    /// Whether the caller's word stands, whatever the sizes.
    settled: bool,
    /// Reads that spoke for a change, less those that did not.
    surplus: u8,
}

impl Choice {
    pub(crate) fn new(method: Method) -> Self {
        let (splicing, settled) = (method == Method::Splice, method != Method::Auto);
        Self {
            splicing,
            settled,
            surplus: 0,
        }
    }

    /// Whether the next read goes through a pipe.
    pub(crate) fn splices(&self) -> bool {
        self.splicing
    }

    /// A read brought `n` bytes.
    pub(crate) fn saw(&mut self, n: usize) {
        if self.settled {
            return;
        }
        let for_change = if self.splicing { n < SMALL } else { n >= BULK };
        if !for_change {
            self.surplus = self.surplus.saturating_sub(1);
            return;
        }
        self.surplus += 1;
        if self.surplus == DECIDES {
            self.splicing = !self.splicing;
            self.surplus = 0;
        }
    }

    /// The kernel can't splice here.
    pub(crate) fn copy_from_now_on(&mut self) {
        *self = Self::new(Method::Copy);
    }
}

/// A read of this size is bulk: below it copying costs less than the further system call.
const BULK: usize = 8 * 1024;
/// A spliced read below this size speaks for copying. Lower than [`BULK`], so that a direction whose
/// reads lie between does not flap.
const SMALL: usize = 2 * 1024;
/// So many more reads for a change than against it.
const DECIDES: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(method: Method, sizes: &[usize]) -> bool {
        let mut choice = Choice::new(method);
        sizes.iter().for_each(|&n| choice.saw(n));
        choice.splices()
    }

    #[test]
    fn bulk_is_spliced_and_messages_are_copied() {
        assert!(!after(Method::Auto, &[64; 100]));
        assert!(!after(Method::Auto, &[65536; 3]));
        assert!(after(Method::Auto, &[65536; 4]));
        assert!(
            after(Method::Auto, &[65536, 65536, 64, 65536, 65536, 65536]),
            "one small read"
        );
        assert!(
            !after(Method::Auto, &[65536, 65536, 65536, 65536, 64, 64, 64, 64]),
            "back again"
        );
        assert!(after(
            Method::Auto,
            &[65536, 65536, 65536, 65536, 4096, 4096, 4096, 4096]
        ));
    }

    #[test]
    fn the_callers_word_stands() {
        assert!(!after(Method::Copy, &[65536; 100]));
        assert!(after(Method::Splice, &[64; 100]));
    }
}
