//! In place of the predecessors: their READMEs' commands, example unit and options, unchanged, by a link with
//! their name.

mod cloudflare;
mod defects;
mod go_mmproxy;
mod go_mmproxy_suite;
mod load;
mod many_ports;
mod mmproxy_rs;
mod udppp;
