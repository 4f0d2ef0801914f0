//! How a program accepts: by each system call, connections that it inherits, Multipath TCP, TPROXY.

mod accept_calls;
mod accepted;
mod multipath;
mod transparent;
