//! Copy, splice or converse, decided by the sizes of a direction's reads.
//!
//! Splicing saves two copies of every byte and costs a third system call and some work per page: it
//! pays for bulk and not for messages. A conversation saves system calls and costs some to begin: it pays where
//! nothing but messages comes, both ways. What a connection carries changes (a login, then a
//! download), so the choice is looked at with every read.

use peername_sys::uring::BUFFER_SIZE as MESSAGE;

use super::Method;

/// The choice for one direction.
#[derive(Debug)]
pub(crate) struct Choice {
    splicing: bool,
    /// Whether the caller's word stands, whatever the sizes.
    settled: bool,
    /// Reads that spoke for a change, less those that did not.
    surplus: u8,
    /// Reads of a message's size in a row.
    messages: u8,
    /// So many of those make a direction one of messages.
    enough: u8,
    /// Whether it has carried something larger since there were enough of those.
    is_more: bool,
}

impl Choice {
    pub(crate) fn new(method: Method) -> Self {
        let (splicing, settled) = (
            method == Method::Splice,
            matches!(method, Method::Copy | Method::Splice),
        );
        Self {
            splicing,
            settled,
            surplus: 0,
            messages: if method == Method::Uring { ENOUGH } else { 0 },
            enough: ENOUGH,
            is_more: false,
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
        self.saw_message(n <= MESSAGE);
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

    /// Whether the two directions of a connection carry messages, and nothing else.
    pub(crate) fn are_messages(both: [&Self; 2]) -> bool {
        both.iter().all(|choice| !choice.settled && !choice.is_more)
            && both.iter().any(|choice| choice.messages >= choice.enough)
    }

    /// Messages count from now on; what comes may be `more` than those.
    pub(crate) fn forget_messages(&mut self, is_more: bool) {
        self.messages = 0;
        self.is_more |= is_more;
    }

    /// A conversation is over; what came is `more` than messages. The next one has to be worth what beginning and
    /// ending it costs, so it takes twice as many to begin it.
    pub(crate) fn has_talked(&mut self, is_more: bool) {
        self.forget_messages(is_more);
        self.enough = self.enough.saturating_mul(2);
    }

    /// The kernel can't splice here.
    pub(crate) fn copy_from_now_on(&mut self) {
        *self = Self::new(Method::Copy);
    }

    fn saw_message(&mut self, is_message: bool) {
        if !is_message {
            self.forget_messages(true);
        } else if self.messages < self.enough {
            self.messages += 1;
            self.is_more &= self.messages < self.enough;
        }
    }
}

/// A read of this size is bulk: below it copying costs less than the further system call.
const BULK: usize = 8 * 1024;
/// A spliced read below this size speaks for copying. Lower than [`BULK`], so that a direction whose
/// reads lie between does not flap.
const SMALL: usize = 2 * 1024;
/// Messages in a row that make a direction one of messages at first.
const ENOUGH: u8 = 16;
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
    fn messages_are_a_conversation_unless_something_else_comes_either_way() {
        let talks = |up: &[usize], down: &[usize]| {
            let both = [up, down].map(|sizes| {
                let mut choice = Choice::new(Method::Auto);
                sizes.iter().for_each(|&n| choice.saw(n));
                choice
            });
            Choice::are_messages(both.each_ref())
        };
        assert!(!talks(&[], &[]));
        assert!(!talks(&[64; 15], &[1024; 15]));
        assert!(talks(&[64; 16], &[1024; 16]));
        assert!(talks(&[], &[64; 16]), "one listens");
        assert!(!talks(&[64; 1000], &[20_000]), "small requests");
        assert!(talks(&[64; 16], &[[20_000].as_slice(), &[64; 16]].concat()));
    }

    #[test]
    fn every_conversation_takes_more_to_begin() {
        for method in [Method::Auto, Method::Uring] {
            let mut both = [Choice::new(method), Choice::new(method)];
            for needed in [32, 64, 128, 255, 255] {
                both.iter_mut().for_each(|choice| choice.has_talked(true));
                for sent in 0..needed {
                    assert!(!Choice::are_messages(both.each_ref()), "{sent} of {needed}");
                    both.iter_mut().for_each(|choice| choice.saw(64));
                }
                assert!(Choice::are_messages(both.each_ref()), "{needed}");
            }
        }
    }

    #[test]
    fn the_callers_word_stands() {
        assert!(!after(Method::Copy, &[65536; 100]));
        assert!(after(Method::Splice, &[64; 100]));
    }
}
