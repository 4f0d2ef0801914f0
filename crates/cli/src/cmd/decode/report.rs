//! The JSON object that is printed for one message. The order of the fields is the order of the keys.

use std::io::{self, Write};

use data_encoding::HEXLOWER;
use peername_proto::{
    Command, Endpoints, Header, HeaderRefusal, Invalid, Parsed, Spp, Tlv, Transport, Version,
    guess_protocol, parse,
};
use peername_server::header_error::HeaderError;
use serde::{Serialize, Serializer};

use super::format::MessageFormat;

/// One line of output.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report<'a> {
    verdict: Verdict,
    version: Option<u8>,
    command: Option<&'static str>,
    family: Option<&'static str>,
    src: Option<String>,
    dst: Option<String>,
    header_len: Option<usize>,
    tlvs: Option<Vec<Field<'a>>>,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Accept,
    #[default]
    Reject,
    NeedMore,
}

#[derive(Debug, Serialize)]
struct Field<'a> {
    #[serde(rename = "type")]
    kind: u8,
    name: &'static str,
    #[serde(rename = "hex", serialize_with = "as_hex")]
    value: &'a [u8],
}

impl<'a> Report<'a> {
    pub(super) fn new(message: &'a [u8], format: MessageFormat) -> Self {
        match format {
            MessageFormat::Proxy(carrier) => match parse(message, carrier) {
                Ok(Parsed::Complete(header)) => Self::proxy(&header),
                Ok(Parsed::NeedMore(need)) => Self::need_more(message.len(), need),
                Err(invalid) => Self::invalid(&invalid, message),
            },
            MessageFormat::StrictProxy(carrier) => match parse(message, carrier) {
                Ok(Parsed::Complete(header)) if let Some(deviation) = header.deviation() => {
                    let refusal = HeaderRefusal::Deviation(deviation);
                    Self::reject(HeaderError::Refused(refusal).to_string())
                }
                _ => Self::new(message, MessageFormat::Proxy(carrier)),
            },
            MessageFormat::Spp => match Spp::parse(message) {
                Ok(header) => Self::spp(header),
                Err(invalid) => Self::invalid(&invalid, message),
            },
        }
    }

    pub(super) fn reject(error: String) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }

    /// Writes the report as one line, and returns whether the message was accepted.
    pub(super) fn print(&self, output: &mut impl Write) -> io::Result<bool> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        output.write_all(&line)?;
        Ok(self.verdict == Verdict::Accept)
    }

    fn proxy(header: &Header<'a>) -> Self {
        let (src, dst) = addresses(header.endpoints).unzip();
        Self {
            verdict: Verdict::Accept,
            version: Some(version(header.version)),
            command: Some(command(header.command)),
            family: family(header),
            src,
            dst,
            header_len: Some(header.len),
            tlvs: fields(header),
            error: None,
        }
    }

    fn spp(header: Spp) -> Self {
        Self {
            verdict: Verdict::Accept,
            command: Some(command(Command::Proxy)),
            family: Some(inet_family(Transport::Datagram, header.client.is_ipv4())),
            src: Some(header.client.to_string()),
            dst: Some(header.proxy.to_string()),
            header_len: Some(Spp::LEN),
            ..Self::default()
        }
    }

    fn need_more(have: usize, need: usize) -> Self {
        let error =
            format!("incomplete: {have} bytes are valid so far, the header has {need} or more");
        Self {
            verdict: Verdict::NeedMore,
            error: Some(error),
            ..Self::default()
        }
    }

    fn invalid(invalid: &Invalid, message: &[u8]) -> Self {
        let is_other_protocol = matches!(invalid, Invalid::NoHeader { .. } | Invalid::SppMagic(_));
        let hint = match guess_protocol(message) {
            _ if !is_other_protocol => String::new(),
            Some(guess) => format!(" (it looks like {guess})"),
            None if is_hex(message) => " (it looks like hex: add --hex)".to_owned(),
            None => String::new(),
        };
        Self::reject(format!("{invalid}{hint}"))
    }
}

/// Whether a message begins with 12 hex digits: no protocol is known whose payload begins with that many.
fn is_hex(message: &[u8]) -> bool {
    let beginning = message.get(..12).unwrap_or_default();
    !beginning.is_empty() && beginning.iter().all(u8::is_ascii_hexdigit)
}

impl<'a> Field<'a> {
    fn new(tlv: Tlv<'a>) -> Self {
        Self {
            kind: tlv.kind,
            name: tlv.name(),
            value: tlv.value,
        }
    }
}

fn version(version: Version) -> u8 {
    match version {
        Version::V1 => 1,
        Version::V2 => 2,
    }
}

fn command(command: Command) -> &'static str {
    match command {
        Command::Proxy => "proxy",
        Command::Local => "local",
        Command::Unknown => "unknown",
    }
}

/// LOCAL has no family: it announces no client's connection.
fn family(header: &Header<'_>) -> Option<&'static str> {
    match header.endpoints {
        Endpoints::Real if header.command == Command::Local => None,
        Endpoints::Real => Some("unspec"),
        Endpoints::Inet {
            transport, source, ..
        } => Some(inet_family(transport, source.is_ipv4())),
        Endpoints::Unix {
            transport: Transport::Stream,
            ..
        } => Some("unix-stream"),
        Endpoints::Unix {
            transport: Transport::Datagram,
            ..
        } => Some("unix-dgram"),
    }
}

fn inet_family(transport: Transport, is_ipv4: bool) -> &'static str {
    match (transport, is_ipv4) {
        (Transport::Stream, true) => "tcp4",
        (Transport::Stream, false) => "tcp6",
        (Transport::Datagram, true) => "udp4",
        (Transport::Datagram, false) => "udp6",
    }
}

fn addresses(endpoints: Endpoints<'_>) -> Option<(String, String)> {
    match endpoints {
        Endpoints::Real => None,
        Endpoints::Inet {
            source,
            destination,
            ..
        } => Some((source.to_string(), destination.to_string())),
        Endpoints::Unix {
            source,
            destination,
            ..
        } => Some((source.to_string(), destination.to_string())),
    }
}

/// The TLVs. Only a version 2 header with addresses can have TLVs; it may still have none.
fn fields<'a>(header: &Header<'a>) -> Option<Vec<Field<'a>>> {
    let has_tlvs = header.version == Version::V2 && header.endpoints != Endpoints::Real;
    has_tlvs.then(|| header.tlvs.iter().map(Field::new).collect())
}

fn as_hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&HEXLOWER.encode(bytes))
}
