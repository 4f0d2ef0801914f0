//! `peername decode`: parses PROXY headers and prints their fields as JSON.
//!
//! It uses the proxy's own codec, so that a captured header can be examined without a proxy, a backend
//! or a log level.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use data_encoding::HEXLOWER_PERMISSIVE;
use peername_proto::V2_MAX_LEN;

use self::format::{HeaderFormat, MessageFormat, Transport};
use self::report::Report;

mod format;
mod report;

/// Options of `peername decode`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername decode < header.bin")]
pub(crate) struct Args {
    /// Read one message per line, as hex, instead of one message of raw bytes. A line may begin with up to 64 blanks, and
    /// is read as far as the longest possible header: what follows is ignored
    #[arg(long)]
    hex: bool,
    /// The transport of the message: over TCP it may be incomplete, over UDP it may not [default: tcp, udp with spp]
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// The format: the PROXY protocol, or Cloudflare's Simple Proxy Protocol (UDP only)
    #[arg(long, value_enum, default_value_t = HeaderFormat::Proxy)]
    dialect: HeaderFormat,
    /// Reject headers that are unambiguous, but not as the specification has them: families that differ, a space before
    /// CRLF, source port 0
    #[arg(long)]
    strict_header: bool,
}

/// Reads standard input and prints one JSON object for each message. Exits with success only if all messages were
/// accepted.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let format = MessageFormat::new(args.dialect, args.transport)
        .unwrap_or_else(|conflict| conflict.exit())
        .with_strictness(args.strict_header);
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    let decoded = if args.hex {
        decode_hex_lines(input, output, format)
    } else {
        decode_raw(input, output, format)
    };
    match decoded {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        // The reader has closed the pipe, as in `peername decode --hex | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error).context("standard input to standard output"),
    }
}

/// Decodes one message of raw bytes. Payload behind [`MAX_MESSAGE_LEN`] is not read.
fn decode_raw(input: impl Read, mut output: impl Write, format: MessageFormat) -> io::Result<bool> {
    let mut message = Vec::new();
    input
        .take(MAX_MESSAGE_LEN as u64)
        .read_to_end(&mut message)?;
    Report::new(&message, format).print(&mut output)
}

/// Decodes one message of hex per line; an empty line is an empty message, and so is an empty input. What a line has beyond
/// [`MAX_LINE_LEN`] is skipped.
fn decode_hex_lines(
    mut input: impl BufRead,
    mut output: impl Write,
    format: MessageFormat,
) -> io::Result<bool> {
    let mut line = Vec::new();
    let mut all_accepted = true;
    if input.fill_buf()?.is_empty() {
        return Report::new(&[], format).print(&mut output);
    }
    while input
        .by_ref()
        .take(MAX_LINE_LEN as u64)
        .read_until(b'\n', &mut line)?
        > 0
    {
        if !line.ends_with(b"\n") {
            input.skip_until(b'\n')?;
        }
        let message = parse_hex(&line);
        let report = match &message {
            Ok(message) => Report::new(message, format),
            Err(error) => Report::reject(error.clone()),
        };
        all_accepted &= report.print(&mut output)?;
        line.clear();
    }
    Ok(all_accepted)
}

/// Parses the first [`MAX_MESSAGE_LEN`] bytes of a line of hex. The error does not quote the line, which may contain anything.
fn parse_hex(line: &[u8]) -> Result<Vec<u8>, String> {
    let digits = line.trim_ascii();
    let digits = digits.get(..2 * MAX_MESSAGE_LEN).unwrap_or(digits);
    if let Some(position) = digits.iter().position(|digit| !digit.is_ascii_hexdigit()) {
        let blanks = line.len() - line.trim_ascii_start().len();
        let column = blanks + position + 1;
        return Err(format!(
            "not hex: column {column} is not a hex digit; write digits alone, as `xxd -p` does"
        ));
    }
    HEXLOWER_PERMISSIVE
        .decode(digits)
        .map_err(|_| "not hex: an odd number of digits".to_owned())
}

/// The bytes of a message that are read: those of the longest header, and one byte more, which shows that the header has ended.
const MAX_MESSAGE_LEN: usize = V2_MAX_LEN + 1;
/// The characters of a line of hex that are read: those of the longest message, and 64 blanks before it.
const MAX_LINE_LEN: usize = 2 * MAX_MESSAGE_LEN + 64;

#[cfg(test)]
mod tests;
