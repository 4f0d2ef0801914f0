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
    /// The time from accept to the complete header.
    pub header_timeout: Duration,
    /// If the program is started with the library: the table as a file, by whose path the library opens it. The file is removed
    /// once no process of the program is left.
    ///
    /// The filter allows calls of the library ([`peername_identity::Settings::pass`]), and the supervisor answers all others.
    /// So a process of the program is shown its clients even if it has lost the library: if its parent gave it another
    /// environment, if it is static, or if it was executed with more privileges (ld.so(8)).
    pub table_file: Option<SharedTable>,
    /// Decides which clients may connect; `None` where all may. If the program is started with the library,
    /// [`peername_identity::Policy::judged_by_waiter`] has to be set, too.
    pub judge: Option<Rc<dyn ClientJudge>>,
    /// Warn if the program listens on none of the ports. False where a service manager has passed sockets, which listen already
    /// on unknown ports, and for a container, whose other programs may listen on other ports.
    pub warns_of_other_ports: bool,
    /// Log each refused connection, not only the first of each reason in an interval.
    pub verbose: bool,
    /// The supervisor's end of the liveness socket, for the process of the admin endpoint ([`crate::admin`]).
    pub admin: Option<OwnedFd>,
}
