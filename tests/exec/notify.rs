//! `peername exec --mode notify`: programs that no library reaches see their clients, and whatever goes
//! wrong between them and the supervisor ends well.

mod faults;
mod programs;
mod slow_headers;
mod sources;
