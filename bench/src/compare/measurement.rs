//! The result of one measurement, as a sandbox prints it.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use crate::host::background_load::BackgroundLoad;

/// One measured figure. The name carries the unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) value: f64,
}

impl Metric {
    pub(crate) fn new(name: &str, value: f64) -> Self {
        Self {
            name: name.to_owned(),
            value,
        }
    }
}

/// The metrics of one run of a workload, with the conditions under which they were measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// None if it was not determined.
    pub(crate) observed: Option<ObservedSource>,
    pub(crate) background: BackgroundLoad,
    pub(crate) metrics: Vec<Metric>,
}

/// The source that the backend sees. Read from the kernel's table of connections, or, with UDP, queried from the
/// backend; never taken from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ObservedSource {
    /// The client's address and port: as if there were no proxy.
    AddressAndPort,
    /// The client's address with another port.
    AddressOnly,
    /// The proxy.
    Proxy,
    /// Contestant and backend are one process: the kernel's table shows the peer of the connection, and what
    /// accept(2) returns can't be observed from outside. The tests of `peername exec` ask the server.
    NotObservable,
}

impl ObservedSource {
    /// Compares the sources that the backend has seen with the one that the client claimed; the closest match wins.
    pub(crate) fn classify(
        claimed: SocketAddrV4,
        mut seen: impl Iterator<Item = SocketAddrV4> + Clone,
    ) -> Self {
        if seen.clone().any(|peer| peer == claimed) {
            Self::AddressAndPort
        } else if seen.any(|peer| peer.ip() == claimed.ip()) {
            Self::AddressOnly
        } else {
            Self::Proxy
        }
    }

    /// The column `backend_sees` of the raw results.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::AddressAndPort => "client",
            Self::AddressOnly => "client-address",
            Self::Proxy => "proxy",
            Self::NotObservable => "not-seen",
        }
    }

    /// The remark below the tables.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::AddressAndPort => "; the backend sees the client's address and port",
            Self::AddressOnly => "; the backend sees the client's address, with another port",
            Self::Proxy => "; the backend sees the proxy",
            Self::NotObservable => "; it is the backend",
        }
    }
}
