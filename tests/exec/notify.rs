//! `peername exec --mode notify`: programs that no library can cover see their clients, and faults between
//! them and the supervisor are contained.

mod faults;
mod flood;
mod programs;
