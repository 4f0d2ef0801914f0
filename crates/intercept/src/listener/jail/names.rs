//! The name server of a jail: it assigns each name that is looked up a synthetic address, by which the destination of a
//! connection is turned back into the name. No query leaves the jail.
//!
//! | module | |
//! |---|---|
//! | [`range`] | the networks of synthetic addresses |
//! | [`table`] | names and their addresses |
//! | [`answer`] | parses a query and makes the response |
//! | [`server`] | the UDP and TCP sockets |

pub mod answer;
pub mod range;
pub mod server;
pub mod table;
