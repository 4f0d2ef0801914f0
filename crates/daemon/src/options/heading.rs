//! The headings of options in help texts. Those of a command come in the order of its options, and [`TUNING`] comes last.

/// Container runtimes, and what they announce.
pub const CONTAINERS: &str = "Containers";
/// Where connections are accepted.
pub const LISTENING: &str = "Listening";
/// Where connections are forwarded to.
pub const BACKEND: &str = "Backend";
/// Who may connect.
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
/// What a program may use beside the network.
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
/// What has a good default for nearly everyone. These options are hidden in `-h`.
pub const TUNING: &str = "Tuning";
