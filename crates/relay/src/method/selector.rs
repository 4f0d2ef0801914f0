//! Selects copy, splice or io_uring for a direction by the sizes of its reads.
//!
//! Splicing saves two copies of every byte and costs a third system call and some work per page: it
//! pays for bulk and not for messages. Receiving by io_uring saves system calls and costs some to begin: it pays where
//! both directions carry nothing but messages. What a connection carries changes (a login, then a
//! download), so every read is counted.

use peername_sys::uring::BUFFER_SIZE as MAX_MESSAGE_BYTES;

use super::Method;

/// Selects the method for one direction.
#[derive(Debug)]
pub(crate) struct MethodSelector {
    splicing: bool,
    /// Whether the caller fixed the method, whatever the sizes.
    is_fixed: bool,
    /// Reads in favour of switching, minus those against it.
    votes: u8,
    /// Consecutive reads of a message's size.
    message_run: u8,
    /// The run from which on a direction counts as message traffic.
    required_run: u8,
    /// Whether it has carried bulk since the last complete run.
    has_bulk: bool,
}

impl MethodSelector {
    pub(crate) fn new(method: Method) -> Self {
        let (splicing, is_fixed) = (
            method == Method::Splice,
            matches!(method, Method::Copy | Method::Splice),
        );
        Self {
            splicing,
            is_fixed,
            votes: 0,
            message_run: if method == Method::Uring {
                INITIAL_MESSAGE_RUN
            } else {
                0
            },
            required_run: INITIAL_MESSAGE_RUN,
            has_bulk: false,
        }
    }

    /// Whether the next read goes through a pipe.
    pub(crate) fn is_splicing(&self) -> bool {
        self.splicing
    }

    /// Counts a read of `n` bytes.
    pub(crate) fn record_read(&mut self, n: usize) {
        if self.is_fixed {
            return;
        }
        self.record_message(n <= MAX_MESSAGE_BYTES);
        let for_switch = if self.splicing {
            n < SMALL_READ_BYTES
        } else {
            n >= BULK_READ_BYTES
        };
        if !for_switch {
            self.votes = self.votes.saturating_sub(1);
            return;
        }
        self.votes += 1;
        if self.votes == VOTES_TO_SWITCH {
            self.splicing = !self.splicing;
            self.votes = 0;
        }
    }

    /// Whether both directions of a connection carry messages only, so that io_uring pays.
    pub(crate) fn is_message_traffic(both: [&Self; 2]) -> bool {
        both.iter()
            .all(|selector| !selector.is_fixed && !selector.has_bulk)
            && both
                .iter()
                .any(|selector| selector.message_run >= selector.required_run)
    }

    /// Restarts the run of messages; `has_bulk` if the direction carried bulk.
    pub(crate) fn restart_run(&mut self, has_bulk: bool) {
        self.message_run = 0;
        self.has_bulk |= has_bulk;
    }

    /// Exponential backoff after an io_uring session, `has_bulk` if bulk ended it: the next session requires twice the
    /// run of messages, because beginning and ending one has a cost.
    pub(crate) fn back_off(&mut self, has_bulk: bool) {
        self.restart_run(has_bulk);
        self.required_run = self.required_run.saturating_mul(2);
    }

    /// Fixes the method to copy: the kernel can't splice from this socket.
    pub(crate) fn force_copy(&mut self) {
        *self = Self::new(Method::Copy);
    }

    fn record_message(&mut self, is_message: bool) {
        if !is_message {
            self.restart_run(true);
        } else if self.message_run < self.required_run {
            self.message_run += 1;
            self.has_bulk &= self.message_run < self.required_run;
        }
    }
}

/// A read of at least this size is bulk: below it, copying costs less than another system call.
const BULK_READ_BYTES: usize = 8 * 1024;
/// A spliced read below this size is a vote for copying. Lower than [`BULK_READ_BYTES`], so that a direction with
/// reads between the two does not flap (hysteresis).
const SMALL_READ_BYTES: usize = 2 * 1024;
/// The run from which on a direction counts as message traffic, before any backoff.
const INITIAL_MESSAGE_RUN: u8 = 16;
/// The majority of reads that switches between copy and splice.
const VOTES_TO_SWITCH: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(method: Method, sizes: &[usize]) -> bool {
        let mut selector = MethodSelector::new(method);
        sizes.iter().for_each(|&n| selector.record_read(n));
        selector.is_splicing()
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
    fn io_uring_is_selected_while_both_directions_carry_messages_only() {
        let selects_uring = |up: &[usize], down: &[usize]| {
            let both = [up, down].map(|sizes| {
                let mut selector = MethodSelector::new(Method::Auto);
                sizes.iter().for_each(|&n| selector.record_read(n));
                selector
            });
            MethodSelector::is_message_traffic(both.each_ref())
        };
        assert!(!selects_uring(&[], &[]));
        assert!(!selects_uring(&[64; 15], &[1024; 15]));
        assert!(selects_uring(&[64; 16], &[1024; 16]));
        assert!(selects_uring(&[], &[64; 16]), "one side only listens");
        assert!(!selects_uring(&[64; 1000], &[20_000]), "small requests");
        assert!(selects_uring(
            &[64; 16],
            &[[20_000].as_slice(), &[64; 16]].concat()
        ));
    }

    #[test]
    fn each_io_uring_session_doubles_the_required_run() {
        for method in [Method::Auto, Method::Uring] {
            let mut both = [MethodSelector::new(method), MethodSelector::new(method)];
            for needed in [32, 64, 128, 255, 255] {
                both.iter_mut().for_each(|selector| selector.back_off(true));
                for sent in 0..needed {
                    assert!(
                        !MethodSelector::is_message_traffic(both.each_ref()),
                        "{sent} of {needed}"
                    );
                    both.iter_mut()
                        .for_each(|selector| selector.record_read(64));
                }
                assert!(
                    MethodSelector::is_message_traffic(both.each_ref()),
                    "{needed}"
                );
            }
        }
    }

    #[test]
    fn a_fixed_method_ignores_sizes() {
        assert!(!after(Method::Copy, &[65536; 100]));
        assert!(after(Method::Splice, &[64; 100]));
    }
}
