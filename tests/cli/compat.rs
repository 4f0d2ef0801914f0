//! peername under its predecessors' names, started by links: it accepts their options unchanged, and the commands and
//! unit of their READMEs work.

mod cloudflare;
mod defects;
mod go_mmproxy;
mod go_mmproxy_suite;
mod load;
mod many_ports;
mod mmproxy_rs;
mod udppp;
