//! The methods of moving bytes: copy and splice.

pub(crate) mod copy;
pub(crate) mod selector;
pub(crate) mod splice;

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Copies, and splices a direction while it carries bulk.
    #[default]
    Auto,
    /// Copies through one buffer per thread, shared by all its connections.
    Copy,
    /// Splices through a pipe: the payload is never copied to user space.
    Splice,
}
