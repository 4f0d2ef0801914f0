//! How a message is to be read, by `--dialect` and `--transport`.

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

/// What the messages are to be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageFormat {
    Proxy(peername_proto::Carrier),
    Spp,
}

impl MessageFormat {
    pub(super) fn new(
        dialect: HeaderFormat,
        transport: Option<Transport>,
    ) -> Result<Self, clap::Error> {
        use peername_proto::Carrier;
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
}
