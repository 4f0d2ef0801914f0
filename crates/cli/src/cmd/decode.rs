//! `peername decode`: what does this header say?
//!
//! It reads with the same codec as the proxy, so that a captured header can be asked about without a
//! proxy, a backend or a log level.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use peername_proto::V2_MAX_LEN;

use self::hex::HexLine;
use self::report::Report;

mod hex;
mod report;

/// Options of `peername decode`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read one hex string a line instead of one message of raw bytes
    #[arg(long)]
    hex: bool,
    /// What carried the message: a stream may be incomplete, a datagram may not [default: tcp, udp with spp]
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// The format: the PROXY protocol, or Cloudflare's Simple Proxy Protocol (UDP only)
    #[arg(long, value_enum, default_value_t = Dialect::Proxy)]
    dialect: Dialect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dialect {
    Proxy,
    Spp,
}

/// Reads standard input and prints one JSON object a message. Success only if all were accepted.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let format = Format::new(args.dialect, args.transport).unwrap_or_else(|misuse| misuse.exit());
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    let decoded = if args.hex {
        decode_lines(input, output, format)
    } else {
        decode_one(input, output, format)
    };
    match decoded {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        // `peername decode --hex | head` has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error).context("standard input to standard output"),
    }
}

/// What the messages are to be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Proxy(peername_proto::Carrier),
    Spp,
}

impl Format {
    fn new(dialect: Dialect, transport: Option<Transport>) -> Result<Self, clap::Error> {
        use peername_proto::Carrier;
        match (dialect, transport) {
            (Dialect::Proxy, None | Some(Transport::Tcp)) => Ok(Self::Proxy(Carrier::Stream)),
            (Dialect::Proxy, Some(Transport::Udp)) => Ok(Self::Proxy(Carrier::Datagram)),
            (Dialect::Spp, None | Some(Transport::Udp)) => Ok(Self::Spp),
            (Dialect::Spp, Some(Transport::Tcp)) => Err(clap::Error::raw(
                clap::error::ErrorKind::ArgumentConflict,
                "--dialect spp exists over UDP only; leave --transport tcp out\n",
            )),
        }
    }
}

/// One message of raw bytes. Data far behind the header is neither kept nor read.
fn decode_one(input: impl Read, mut output: impl Write, format: Format) -> io::Result<bool> {
    let mut message = Vec::new();
    input.take(KEPT as u64).read_to_end(&mut message)?;
    Report::of(&message, format).print(&mut output)
}

/// One message of hex a line; an empty line is an empty message.
fn decode_lines(
    mut input: impl BufRead,
    mut output: impl Write,
    format: Format,
) -> io::Result<bool> {
    let mut line = HexLine::new(KEPT);
    let mut all_accepted = true;
    while line.read(&mut input)? {
        let report = match line.octets() {
            Ok(message) => Report::of(message, format),
            Err(bad) => Report::reject(bad.to_string()),
        };
        all_accepted &= report.print(&mut output)?;
    }
    Ok(all_accepted)
}

/// Octets kept of one message: the longest header, and one octet more, which shows that it ended.
/// Fewer, and the longest headers could not be read.
const KEPT: usize = V2_MAX_LEN + 1;

#[cfg(test)]
mod tests;
