//! Black-box tests: the real binary between real balancers and real, unmodified servers.
//!
//! Every test builds a network of its own ([`lab`]), so the tests need root and run side by side.
//! One file shows one capability. What a server says about its client (its access log, its session
//! list) is the evidence; the few cases that need exact bytes or an ill-mannered peer use
//! [`backend`] and [`conn`], the two ends of a connection in our own hands.
#![forbid(unsafe_code)]

mod addr;
mod backend;
mod check;
mod conn;
mod datagram;
mod header;
mod lab;
mod pattern;
mod peername;
mod rig;
mod sender;
mod server;

mod another_host;
mod ca;
mod collisions;
mod compat;
mod config;
mod conversations;
mod destinations;
mod exec;
mod exec_connect;
mod exec_netns;
mod exec_notify;
mod exec_programs;
mod headers;
mod installed;
mod intercept;
mod limits;
mod listeners;
mod logging;
mod logs_page;
mod onward;
mod opening;
mod outages;
mod readme;
mod recipes;
mod relay;
mod reload;
mod reload_addresses;
mod reload_files;
mod routes;
mod same_host;
mod servers;
mod service_manager;
mod small;
mod smoke;
mod sources;
mod stopping;
mod tproxy;
mod trust;
mod udp;
