//! The kernel's part of the data path: eBPF programs, in C in `bpf/`, and what loads and fills them.
//!
//! Nothing is decided in the kernel. User space decides on a session's first datagrams, as ever; once a
//! session is steady, [`udp::DataPath`] is told what was decided ([`flow::Flow`]), and the kernel does the same with
//! each further datagram, without a system call or a copy to user space. What it was not told about, and what is
//! out of the ordinary, comes to user space as before.
#![forbid(unsafe_code)]

pub mod flow;
pub mod udp;

mod layout;
mod sums;
