//! The methods of moving bytes: copy, splice and io_uring.

pub(crate) mod copy;
pub(crate) mod selector;
pub(crate) mod splice;
pub(crate) mod uring;

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Copies, splices a direction while it carries bulk, and receives by io_uring, where available, once a connection
    /// has carried small messages for a while.
    #[default]
    Auto,
    /// Copies through one buffer per thread, shared by all its connections.
    Copy,
    /// Splices through a pipe: the payload is never copied to user space.
    Splice,
    /// Like [`Method::Auto`], but begins with io_uring.
    Uring,
}
