//! Writing headers. [`parse`](crate::parse()) accepts whatever is written here, and returns the same values.

pub(crate) mod plain;
#[cfg(feature = "std")]
mod v1;
#[cfg(feature = "std")]
mod v2;
#[cfg(feature = "std")]
mod write_error;

#[cfg(feature = "std")]
use crate::spp::Spp;

pub use plain::PlainHeader;
#[cfg(feature = "std")]
pub use v1::{write_v1, write_v1_unknown};
#[cfg(feature = "std")]
pub use v2::V2Writer;
#[cfg(feature = "std")]
pub use write_error::WriteError;

/// Appends a Simple Proxy Protocol header.
#[cfg(feature = "std")]
pub fn write_spp(out: &mut Vec<u8>, header: Spp) {
    out.extend(header.to_bytes());
}

#[cfg(test)]
mod tests;
