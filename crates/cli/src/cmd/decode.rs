//! `peername decode`: what does this header say?
//!
//! It reads with the same codec as the proxy, so that a captured header can be asked about without a
//! proxy, a backend or a log level.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use peername_proto::V2_MAX_LEN;

use self::format::{HeaderFormat, MessageFormat, Transport};
use self::hex::HexLine;
use self::report::Report;

mod format;
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
    #[arg(long, value_enum, default_value_t = HeaderFormat::Proxy)]
    dialect: HeaderFormat,
}

/// Reads standard input and prints one JSON object a message. Success only if all were accepted.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let format =
        MessageFormat::new(args.dialect, args.transport).unwrap_or_else(|misuse| misuse.exit());
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

/// One message of raw bytes. Data far behind the header is neither kept nor read.
fn decode_one(input: impl Read, mut output: impl Write, format: MessageFormat) -> io::Result<bool> {
    let mut message = Vec::new();
    input
        .take(MAX_MESSAGE_LEN as u64)
        .read_to_end(&mut message)?;
    Report::of(&message, format).print(&mut output)
}

/// One message of hex a line; an empty line is an empty message.
fn decode_lines(
    mut input: impl BufRead,
    mut output: impl Write,
    format: MessageFormat,
) -> io::Result<bool> {
    let mut line = HexLine::new(MAX_MESSAGE_LEN);
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

/// Bytes kept of one message: the longest header, and one byte more, which shows that it ended.
/// Fewer, and the longest headers could not be read.
const MAX_MESSAGE_LEN: usize = V2_MAX_LEN + 1;

#[cfg(test)]
mod tests;
