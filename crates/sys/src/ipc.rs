//! Communication between processes: Unix sockets, passing descriptors, inherited sockets, shared memory, records.

pub mod fd_passing;
pub mod foreign_fd;
pub mod inherited_socket;
pub mod listen_fds;
pub mod record_pipe;
pub mod seqpacket;
pub mod shared_memory;
pub mod unix_socket_file;
