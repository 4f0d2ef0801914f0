//! How a program accepts: by each system call, connections that it inherits, Multipath TCP.

mod accept_calls;
mod accepted;
mod multipath;
