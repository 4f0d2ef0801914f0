//! Offload of UDP sessions to the kernel: eBPF programs, in C in `bpf/`, and their loader.
//!
//! Nothing is decided in the kernel. User space decides on a session's first datagrams; once a session is steady, it
//! [installs](data_path::DataPath::install) a [`flow::Flow`], and the kernel handles each further datagram likewise (the
//! fast path), without a system call or a copy to user space. A datagram that matches no flow, or is out of the ordinary,
//! takes the slow path through user space.
#![forbid(unsafe_code)]

pub mod address_pair;
pub mod data_path;
pub mod flow;
pub mod totals;
pub mod usage;

mod checksum;
mod layout;
