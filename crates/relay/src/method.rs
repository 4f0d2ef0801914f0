//! How bytes are moved.

pub(crate) mod copy;
pub(crate) mod selector;
pub(crate) mod splice;
pub(crate) mod uring;

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Copy, and splice a direction for as long as it carries bulk; what carries small messages for a while is
    /// received by io_uring, where that is to be had.
    #[default]
    Auto,
    /// Through one buffer per thread, shared by all its connections.
    Copy,
    /// Through a pipe: the payload is never copied to user space.
    Splice,
    /// As [`Method::Auto`], beginning with io_uring.
    Uring,
}
