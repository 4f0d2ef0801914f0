//! Translates the command line of mmproxy-rs; its binary is called `mmproxy`.

use std::ffi::OsString;

use super::native_command::{MAX_WORKERS, NativeCommand};
use super::parser::{self, Opt, ParsedOptions, ParserRules};
use super::program::Program;
use super::translation::{EarlyExit, Environment, Translation};
use super::trust_file::trust_or_any;

/// Whether mmproxy-rs would accept this command line.
pub(super) fn understands(args: &[OsString]) -> bool {
    parser::parse(ParserRules::Argwerk, OPTIONS, args).is_ok()
}

pub(super) fn translate(
    args: &[OsString],
    environment: Environment<'_>,
) -> Result<Translation, EarlyExit> {
    let parsed = parser::parse(ParserRules::Argwerk, OPTIONS, args)
        .map_err(|error| usage_error(&error.to_string()))?;
    if parsed.has("help") {
        return Err(EarlyExit {
            text: USAGE.to_owned(),
            is_requested_help: true,
            code: 1,
        });
    }
    let protocol = protocol(&parsed)?;
    let mark = number::<u32>(&parsed, "mark")?;
    let close_after = number::<u64>(&parsed, "close-after")?;
    // mmproxy-rs used the value as the length of the accept backlog; its help said the number of sockets, as here.
    let listeners = number::<u32>(&parsed, "listeners")?.unwrap_or(1);
    let mut notes = Vec::new();
    let subnets = parsed.last("allowed-subnets");
    let listen = parsed.last("listen-addr");
    let targets = ["ipv4", "ipv6"].map(|option| parsed.last(option));
    let native = NativeCommand::new("proxy")
        .option_if("--listen", listen)
        .option_if("--protocol", protocol)
        .targets(listen, targets, &mut notes)
        .trust(trust_or_any(subnets, "--allowed-subnets", &mut notes))
        .option("--source-policy", "allow-local")
        .option_if("--mark", mark.map(|mark| mark.to_string()))
        .close_after(close_after, protocol == Some("udp"))
        .option("--workers", listeners.clamp(1, MAX_WORKERS).to_string())
        .option("--log-format", "text")
        .switch_if(verbosity(environment.rust_log.unwrap_or_default()), true);
    Ok(Translation {
        program: Program::MmproxyRs,
        words: native.into_words(),
        notes,
    })
}

fn protocol(parsed: &ParsedOptions) -> Result<Option<&'static str>, EarlyExit> {
    let parse = |text: &str| match text.to_lowercase().as_str() {
        "tcp" => Some("tcp"),
        "udp" => Some("udp"),
        _ => None,
    };
    parsed
        .parse_last("protocol", parse)
        .map_err(|value| usage_error(&format!("invalid protocol value: {value}")))
}

fn number<T: std::str::FromStr>(
    parsed: &ParsedOptions,
    name: &str,
) -> Result<Option<T>, EarlyExit> {
    parsed
        .parse_last(name, |text| text.parse().ok())
        .map_err(|value| usage_error(&format!("--{name}: invalid number {value:?}")))
}

/// The verbosity by `RUST_LOG`: a level, or several by module (`mmproxy=debug`), of which the most
/// verbose counts. mmproxy-rs logged each connection at `info`, the default.
fn verbosity(rust_log: &str) -> &'static str {
    let rank = |level: &str| match level.to_ascii_lowercase().as_str() {
        "off" | "error" | "warn" => Some(0),
        "info" | "debug" => Some(1),
        "trace" => Some(2),
        _ => None,
    };
    let words = rust_log.split([',', '=']).map(str::trim);
    match words.filter_map(rank).max() {
        Some(0) => "--quiet",
        Some(2) => "-vv",
        _ => "-v",
    }
}

/// A usage error. mmproxy-rs exited with 0; peername never does so for a failure to start.
fn usage_error(text: &str) -> EarlyExit {
    EarlyExit::failure(1, format!("{text}\n{USAGE}"))
}

pub(super) const OPTIONS: &[Opt] = &[
    Opt::switch(&["help", "h"]),
    Opt::with_value(&["ipv4", "4"]),
    Opt::with_value(&["ipv6", "6"]),
    Opt::with_value(&["allowed-subnets", "a"]),
    Opt::with_value(&["close-after", "c"]),
    Opt::with_optional_value(&["listen-addr", "l"]),
    Opt::with_value(&["listeners"]),
    Opt::with_optional_value(&["protocol", "p"]),
    Opt::with_value(&["mark", "m"]),
];

pub(super) const USAGE: &str =
    "Usage: mmproxy [-h] [options] (peername in its place; see docs/migrate.md)

Options:
  -h, --help                    Print this.
  -4, --ipv4 <addr>             Backend of IPv4 clients. (default: \"127.0.0.1:443\")
  -6, --ipv6 <addr>             Backend of IPv6 clients. (default: \"[::1]:443\")
  -a, --allowed-subnets <path>  Networks of the balancers, one a line. (default: every peer)
  -c, --close-after <n>         Seconds after which idle UDP sessions end. (default: 60)
  -l, --listen-addr <string>    Listen address. (default: \"0.0.0.0:8443\")
  --listeners <n>               Event loops, each with a listening socket. (default: 1)
  -p, --protocol <p>            tcp or udp. (default: tcp)
  -m, --mark <n>                SO_MARK of connections to the backend. (default: 0)";
