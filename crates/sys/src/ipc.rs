//! What processes hand to each other: descriptors, listening sockets, shared memory.

pub mod fd_passing;
pub mod listen_fds;
pub mod shared_memory;
