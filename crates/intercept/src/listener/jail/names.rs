//! The name server of a jail: it gives each name that is looked up a synthetic address of its own, so that the destination of
//! any connection leads back to the name. No query leaves the jail.
//!
//! | module | |
//! |---|---|
//! | [`range`] | the networks of these addresses |
//! | [`table`] | names and their addresses |
//! | [`answer`] | a query, and the response to it |
//! | [`server`] | UDP and TCP |

pub mod answer;
pub mod range;
pub mod server;
pub mod table;
