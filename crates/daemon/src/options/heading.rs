//! The headings of options in help texts. Those of a command come in the order of its options, and [`TUNING`] comes last.

/// Container runtimes, and what they announce.
pub const CONTAINERS: &str = "Containers";
/// Listen addresses.
pub const LISTENING: &str = "Listening";
/// The servers to which connections are forwarded.
pub const BACKEND: &str = "Backend";
/// Which clients may connect.
pub const CLIENTS: &str = "Clients";
/// The PROXY headers of balancers, and the clients that they name.
pub const HEADERS: &str = "Headers and clients";
/// The PROXY header that is sent.
pub const SENT_HEADER: &str = "Header that is sent";
/// Which requests are allowed.
pub const RULES: &str = "Rules";
/// The service that checks requests.
pub const CHECK: &str = "Check service";
/// Certificates, and connections whose TLS is not opened.
pub const TLS: &str = "TLS";
/// Connections to origins.
pub const ORIGINS: &str = "Origins";
/// The files, sockets and system calls that a program may use beside the network.
pub const CONFINEMENT: &str = "Confinement";
/// Datagrams.
pub const UDP: &str = "UDP";
/// Limits of time.
pub const TIMEOUTS: &str = "Timeouts";
/// Start, reload, observation and end of the process.
pub const OPERATION: &str = "Operation";
/// A unit of systemd.
pub const UNIT: &str = "Unit of systemd";
/// The log.
pub const LOG: &str = "Log";
/// Options whose default suits nearly every host. They are hidden in `-h`.
pub const TUNING: &str = "Tuning";
