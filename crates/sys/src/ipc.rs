//! Communication between processes: passing descriptors, inherited listening sockets, shared memory.

pub mod fd_passing;
pub mod listen_fds;
pub mod shared_memory;
