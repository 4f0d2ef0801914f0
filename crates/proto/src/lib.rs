//! The PROXY protocol, versions 1 and 2, and Cloudflare's Simple Proxy Protocol.
//!
//! Bytes in, value out: nothing here touches a socket, and parsing a header allocates nothing. This crate decides
//! what a header *says*; whether to *trust* it (which peer sent it, which addresses are
//! allowed, how long to wait, how large it may be) is the caller's policy.
//!
//! Without the feature `std` this crate needs neither an allocator nor the standard library, and writes
//! only [`PlainHeader`]: the preloaded libraries use it in this way.
//!
//! Section numbers refer to HAProxy's `doc/proxy-protocol.txt` (2026-04).
//!
//! ```
//! use peername_proto::{Carrier, Parsed, parse};
//!
//! let bytes = b"PROXY TCP4 192.0.2.10 198.51.100.20 56324 443\r\nhello";
//! let Ok(Parsed::Complete(header)) = parse(bytes, Carrier::Stream) else { unreachable!() };
//! assert_eq!(header.source(), Some("192.0.2.10:56324".parse().unwrap()));
//! assert_eq!(&bytes[header.len..], b"hello");
//! ```
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "a test that panics is a test that fails"
    )
)]

mod crc;
mod deviation;
mod header;
mod header_policy;
mod invalid;
#[cfg(feature = "std")]
mod network;
mod parse;
mod port_range;
mod source_policy;
mod special;
mod tlv;
mod unbracketed;
mod write;

pub mod spp;

pub use crate::deviation::Deviation;
pub use crate::header::{Command, Endpoints, Header, Transport, UnixName, Version};
pub use crate::header_policy::{HeaderPolicy, HeaderRefusal};
pub use crate::invalid::{Invalid, V1Field};
#[cfg(feature = "std")]
pub use crate::network::{ParseNetworkError, networks_of, parse_network, parse_truncated_network};
pub use crate::parse::v1::{MAX_LEN as V1_MAX_LEN, address};
pub use crate::parse::v2::{MAX_LEN as V2_MAX_LEN, SIGNATURE as V2_SIGNATURE};
pub use crate::parse::{
    Carrier, Parsed, ProtocolGuess, begins_like_header, begins_like_v1, guess_protocol, parse,
};
pub use crate::port_range::{is_reversed_port_range, port_range};
pub use crate::source_policy::{HostAddress, SourcePolicy, SourceRefusal};
pub use crate::special::{Special, canonical, embedded_ipv4, meanings, special};
pub use crate::spp::Spp;
pub use crate::tlv::{Iter, Ssl, Tlv, Tlvs, Vendor, kind};
pub use crate::unbracketed::parse_unbracketed;
pub use crate::write::PlainHeader;
#[cfg(feature = "std")]
pub use crate::write::{V2Writer, WriteError, write_v1, write_v1_unknown};
