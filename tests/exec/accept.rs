//! How a program accepts, and by what: each system call, sockets that it has inherited, Multipath TCP.

mod accept_calls;
mod accepted;
mod multipath;
