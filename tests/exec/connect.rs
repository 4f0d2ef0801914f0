//! `peername exec --connect`: each TCP connection of an unmodified client begins with a PROXY header.
//!
//! The evidence is what the receiver reports: a server of the tests' or a well-known one, behind `peername
//! exec`, HAProxy or nginx; and for exact bytes, a socket scripted by the test.

mod calls;
mod launcher;
mod libproxyproto;
mod programs;
