//! Byte streams with a buffer on one side.

pub(crate) mod corked;
pub(crate) mod prefixed;
