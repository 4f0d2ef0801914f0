//! A connection that names its destination: TLS is terminated, or the bytes are relayed as they are.

pub(crate) mod client_hello;
pub(crate) mod tunnel;
