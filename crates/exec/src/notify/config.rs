//! The supervisor's configuration.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use peername_identity::Table;

use crate::client_judge::ClientJudge;
use crate::table::SharedTable;

/// The configuration of the supervisor.
#[derive(Debug)]
pub struct SupervisorConfig {
    /// The table: trusted networks, ports that expect headers, and the identities.
    pub table: Table<'static>,
    /// From accept to the complete header.
    pub header_timeout: Duration,
    /// If the program is started with the library: the path by which it finds the table, which is removed once no process
    /// of the program is left. What the library accepts does not pass through the supervisor.
    ///
    /// A process of the program may lose the library: its parent gave it another environment, it is static, or it was
    /// executed with more privileges (ld.so(8)). The kernel lets no accept(2) through that does not come from the library
    /// ([`peername_identity::Settings::pass`]); the supervisor answers the others. So every process knows the clients that
    /// it accepts, with or without the library.
    pub library: Option<SharedTable>,
    /// Which clients may connect; `None` for all. If the program is started with the library,
    /// [`peername_identity::Policy::judged_by_waiter`] has to be set, too.
    pub clients: Option<Rc<dyn ClientJudge>>,
    /// Log each refused connection, not only the first of each reason in an interval.
    pub verbose: bool,
    /// The supervisor's end of the line to the process of the admin endpoint ([`crate::admin`]).
    pub admin: Option<OwnedFd>,
}
