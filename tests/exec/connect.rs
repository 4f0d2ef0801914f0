//! `peername exec --connect`: each TCP connection of an unmodified client begins with a PROXY header.
//!
//! What counts is what the receiver reports: a server of ours or others', behind `peername exec`, HAProxy
//! or nginx; and where octets count, a socket in the test's own hands.

mod calls;
mod launcher;
mod libproxyproto;
mod programs;
