//! The host: namespaces, server processes, programs, sockets, epoll, CPU time and memory.

pub(crate) mod background_load;
pub(crate) mod namespace;
pub(crate) mod poller;
pub(crate) mod proc_stat;
pub(crate) mod procfs;
pub(crate) mod program;
pub(crate) mod server_process;
pub(crate) mod sockets;
