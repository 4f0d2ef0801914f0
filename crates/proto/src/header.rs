//! A valid header, of either version.
//!
//! A header without a claim (LOCAL, UNKNOWN, UNSPEC) has no address in these types, so none of its bytes can reach a log, a
//! policy or a socket by mistake.

mod unix_name;

use core::net::SocketAddr;

use crate::deviation::Deviation;
use crate::tlv::Tlvs;

pub use unix_name::UnixName;

/// A complete and valid header. It borrows the bytes it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header<'a> {
    /// The version.
    pub version: Version,
    /// The command: whether it describes a relayed connection.
    pub command: Command,
    /// The endpoints of the connection as the sender saw it.
    pub endpoints: Endpoints<'a>,
    /// The TLVs; empty for version 1, LOCAL and UNSPEC.
    pub tlvs: Tlvs<'a>,
    /// Bytes that the header takes. What follows is application data.
    pub len: usize,
    /// The deviation in the text of a version 1 line.
    pub(crate) line_deviation: Option<Deviation>,
}

impl Header<'_> {
    /// The client, or `None` if the connection's own peer address applies.
    ///
    /// `None` also for a Unix socket's header: it has names but no address that a socket could use.
    /// An IPv4-mapped address is returned as it was written.
    pub fn source(&self) -> Option<SocketAddr> {
        match self.endpoints {
            Endpoints::Inet { source, .. } => Some(source),
            Endpoints::Real | Endpoints::Unix { .. } => None,
        }
    }

    /// The address the client connected to, or `None` if the connection's own local address applies.
    pub fn destination(&self) -> Option<SocketAddr> {
        match self.endpoints {
            Endpoints::Inet { destination, .. } => Some(destination),
            Endpoints::Real | Endpoints::Unix { .. } => None,
        }
    }

    /// The header's deviation from the specification, or a source port of 0, which no client has.
    pub fn deviation(&self) -> Option<Deviation> {
        let has_port_zero = self.source().is_some_and(|source| source.port() == 0);
        self.line_deviation
            .or_else(|| has_port_zero.then_some(Deviation::SourcePortZero))
    }

    /// The original connection's transport, or `None` if the header doesn't describe a connection.
    ///
    /// The connection that carried the header may have another transport.
    pub fn transport(&self) -> Option<Transport> {
        match self.endpoints {
            Endpoints::Inet { transport, .. } | Endpoints::Unix { transport, .. } => {
                Some(transport)
            }
            Endpoints::Real => None,
        }
    }
}

/// The two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// A line of text (section 2.1).
    V1,
    /// Binary (section 2.2).
    V2,
}

/// The command of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// The connection was relayed for a client.
    Proxy,
    /// The proxy's own connection, such as a health check (version 2).
    Local,
    /// The proxy could not describe the connection (version 1).
    Unknown,
}

/// The two ends of the original connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints<'a> {
    /// The header names no endpoints: use the connection's own.
    Real,
    /// IPv4 or IPv6. In version 1 the ends may be of different families ([`Deviation::Families`]).
    Inet {
        /// The client's transport.
        transport: Transport,
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// A Unix domain socket.
    Unix {
        /// The client's transport.
        transport: Transport,
        /// The client's name; often empty.
        source: UnixName<'a>,
        /// The name the client connected to.
        destination: UnixName<'a>,
    },
}

/// The transport of the original connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP, or a Unix stream socket.
    Stream,
    /// UDP, or a Unix datagram socket.
    Datagram,
}
