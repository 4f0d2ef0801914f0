//! The options for the header to send: of `send` and `forward`.

use std::net::SocketAddr;
use std::str::FromStr;

use peername_daemon::usage::UsageError;
use peername_daemon::value::{Tlv, missing_part};
use peername_proto::Transport;
use peername_proxy::config::SendProxy;
use peername_proxy::forward::HeaderTemplate;

/// The contents of the header.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct Header {
    /// The version of the header: 1 (text), 2 (binary), spp (Simple Proxy Protocol, UDP only), or none for no header
    #[arg(long, value_name = "VERSION", default_value = "2")]
    proxy_version: Version,
    /// The source address in the header, or `real` for the connection's own address
    #[arg(long, value_name = "ADDR:PORT", default_value = "real")]
    source: Source,
    /// A TLV to add, its value as text, as hex:…, or as a cloud's id (aws-vpce-id=vpce-…); may be repeated (version 2)
    #[arg(long, value_name = "TYPE=VALUE")]
    tlv: Vec<Tlv>,
    /// Add a CRC-32C checksum (version 2)
    #[arg(long)]
    crc32c: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Text
    V1,
    /// Binary
    V2,
    /// Simple Proxy Protocol, UDP only
    Spp,
    /// No header: the payload alone is sent
    None,
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" | "v1" => Ok(Self::V1),
            "2" | "v2" => Ok(Self::V2),
            "spp" => Ok(Self::Spp),
            "none" => Ok(Self::None),
            _ => Err("use 1 (text), 2 (binary), spp or none".to_owned()),
        }
    }
}

/// The source address in the header; `None` for the connection's own address.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Source(Option<SocketAddr>);

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "real" => Ok(Self(None)),
            addr => match addr.parse() {
                Ok(addr) => Ok(Self(Some(addr))),
                Err(_) => Err(missing_part(addr).unwrap_or_else(|| {
                    "use real, 192.0.2.1:4711 or [2001:db8::1]:4711".to_owned()
                })),
            },
        }
    }
}

impl Header {
    /// The template of a header over TCP.
    pub(crate) fn header_template(&self) -> Result<HeaderTemplate, UsageError> {
        if self.is_spp() {
            return Err(UsageError(
                "--proxy-version spp is for UDP (--protocol udp); TCP has 1 and 2".to_owned(),
            ));
        }
        self.build_template()
    }

    /// The template of a header over UDP. With the Simple Proxy Protocol only its source is used.
    pub(crate) fn datagram_header_template(&self) -> Result<HeaderTemplate, UsageError> {
        if self.proxy_version == Version::V1 {
            return Err(UsageError(
                "--proxy-version 1 has no UDP; use 2 or spp".to_owned(),
            ));
        }
        self.build_template()
    }

    /// The names of the given options that add TLVs, which only version 2 has: `--tlv and --crc32c`.
    pub(crate) fn tlv_options(&self) -> Option<String> {
        let given = [("--tlv", !self.tlv.is_empty()), ("--crc32c", self.crc32c)]
            .into_iter()
            .filter_map(|(option, is_given)| is_given.then_some(option))
            .collect::<Vec<_>>();
        (!given.is_empty()).then(|| given.join(" and "))
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.proxy_version == Version::None
    }

    pub(crate) fn is_spp(&self) -> bool {
        self.proxy_version == Version::Spp
    }

    /// Builds the template for either transport, and refuses options that its version does not have.
    fn build_template(&self) -> Result<HeaderTemplate, UsageError> {
        if self.proxy_version != Version::V2
            && let Some(options) = self.tlv_options()
        {
            return Err(UsageError(format!(
                "--proxy-version must be 2 for {options}: other versions have no TLVs"
            )));
        }
        if self.is_absent() && self.source.0.is_some() {
            return Err(UsageError(
                "--source is part of a header, and --proxy-version none sends none".to_owned(),
            ));
        }
        let header_template = HeaderTemplate {
            version: match self.proxy_version {
                Version::V1 => Some(SendProxy::V1),
                Version::V2 | Version::Spp => Some(SendProxy::V2),
                Version::None => None,
            },
            source: self.source.0,
            tlvs: self
                .tlv
                .iter()
                .map(|tlv| (tlv.kind, tlv.value.clone()))
                .collect(),
            crc32c: self.crc32c,
        };
        let example = SocketAddr::from(([192, 0, 2, 1], 1));
        header_template
            .header(Transport::Stream, example, example)
            .map_err(|error| UsageError(format!("--tlv: {error}")))?;
        Ok(header_template)
    }
}
