//! The format of a message, by `--dialect`, `--transport` and `--strict-header`.

use peername_proto::Carrier;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum HeaderFormat {
    Proxy,
    Spp,
}

/// The format that messages are parsed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageFormat {
    Proxy(Carrier),
    /// Without deviations from the specification.
    StrictProxy(Carrier),
    Spp,
}

impl MessageFormat {
    /// The format of the options. Without `--transport`, the Simple Proxy Protocol is over UDP, and the PROXY protocol over
    /// TCP.
    pub(super) fn new(
        dialect: HeaderFormat,
        transport: Option<Transport>,
    ) -> Result<Self, clap::Error> {
        match (dialect, transport) {
            (HeaderFormat::Proxy, None | Some(Transport::Tcp)) => Ok(Self::Proxy(Carrier::Stream)),
            (HeaderFormat::Proxy, Some(Transport::Udp)) => Ok(Self::Proxy(Carrier::Datagram)),
            (HeaderFormat::Spp, None | Some(Transport::Udp)) => Ok(Self::Spp),
            (HeaderFormat::Spp, Some(Transport::Tcp)) => Err(clap::Error::raw(
                clap::error::ErrorKind::ArgumentConflict,
                "--dialect spp exists over UDP only; leave --transport tcp out\n",
            )),
        }
    }

    /// The same format, without deviations if `is_strict`. The Simple Proxy Protocol has none.
    pub(super) fn with_strictness(self, is_strict: bool) -> Self {
        match self {
            Self::Proxy(carrier) if is_strict => Self::StrictProxy(carrier),
            format => format,
        }
    }
}
