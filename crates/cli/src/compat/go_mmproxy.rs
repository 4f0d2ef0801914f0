//! Translates the command line of go-mmproxy, both kzemek's and path-network's.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;

use peername_daemon::value::Target;
use peername_proxy::config::TargetRule;

use super::native_command::{DEFAULT_V4, DEFAULT_V6, MAX_WORKERS, NativeCommand, target};
use super::parser::{self, Error, Opt, ParsedOptions, ParserRules};
use super::program::Program;
use super::translation::{EarlyExit, Translation};
use super::trust_file::trust_or_any;

pub(super) fn translate(args: &[OsString]) -> Result<Translation, EarlyExit> {
    let parsed = parser::parse(ParserRules::GoFlag, FLAGS, args).map_err(|error| match error {
        Error::Help => EarlyExit {
            text: USAGE.to_owned(),
            is_requested_help: false,
            code: 0,
        },
        error => EarlyExit::failure(2, format!("{error}\n{USAGE}")),
    })?;
    let options = Options::read(&parsed)?;
    let mut notes = Vec::new();
    let subnets = parsed
        .last("allowed-subnets")
        .filter(|path| !path.is_empty());
    let listen = parsed.last("l");
    let is_udp = parsed.last("p").is_some_and(|p| p == "udp");
    let targets = ["4", "6"].map(|option| parsed.last(option));
    let native = NativeCommand::new("proxy")
        .option_if("--listen", listen)
        .option_if("--protocol", parsed.last("p"))
        .targets(listen, targets, &mut notes)
        .trust(trust_or_any(subnets, "-allowed-subnets", &mut notes))
        .option("--source-policy", "allow-local")
        .option_if("--mark", options.mark.map(|mark| mark.to_string()))
        .close_after(options.close_after, is_udp)
        .switch_if("--listen-transparent", parsed.has("listen-transparent"));
    let native = if parsed.has("dynamic-destination") {
        allow_destinations(native, &parsed, &mut notes)
    } else {
        native
    };
    let native = native
        .option("--workers", options.listeners.to_string())
        .option("--log-format", "go-mmproxy")
        .switch_if("-v", options.verbose == 1)
        .switch_if("-vv", options.verbose > 1);
    Ok(Translation {
        program: Program::GoMmproxy,
        words: native.into_words(),
        notes,
    })
}

/// The values of flags with a number.
struct Options {
    mark: Option<u32>,
    close_after: Option<u64>,
    listeners: i64,
    verbose: i64,
}

impl Options {
    fn read(parsed: &ParsedOptions) -> Result<Self, EarlyExit> {
        let number = |name: &'static str| {
            parsed.parse_last(name, integer).map_err(|value| {
                let text = format!("invalid value {value:?} for flag -{name}: parse error");
                EarlyExit::failure(2, format!("{text}\n{USAGE}"))
            })
        };
        let failure = |text: &str| EarlyExit::failure(1, text.to_owned());
        let (mark, verbose) = (number("mark")?, number("v")?.unwrap_or(0));
        let (listeners, close_after) = (number("listeners")?.unwrap_or(1), number("close-after")?);
        if !parsed.last("p").is_none_or(|p| p == "tcp" || p == "udp") {
            return Err(failure("--protocol has to be one of udp, tcp"));
        }
        if !(0..=2).contains(&verbose) {
            return Err(failure("-v has to be >= 0 and <= 2"));
        }
        if listeners < 1 {
            return Err(failure("--listeners has to be >= 1"));
        }
        let mark = mark.map(u32::try_from).transpose();
        let close_after = close_after.map(u64::try_from).transpose();
        Ok(Self {
            mark: mark.map_err(|_| failure("--mark has to be >= 0 and below 2^32"))?,
            close_after: close_after.map_err(|_| failure("-close-after has to be >= 0"))?,
            listeners: listeners.min(MAX_WORKERS.into()),
            verbose,
        })
    }
}

/// Allows every destination outside loopback, and on loopback only the targets. With the old program, headers could
/// reach every loopback address.
fn allow_destinations(
    native: NativeCommand,
    parsed: &ParsedOptions,
    notes: &mut Vec<String>,
) -> NativeCommand {
    notes.push(
        "-dynamic-destination now refuses destinations on loopback other than -4 and -6, its own \
         listeners and cloud metadata services, and with -allowed-subnets this host for clients with \
         an address that may send headers; allow more with -allow-destination, such as 127.0.0.1:9000-9100"
            .to_owned(),
    );
    let targets = [
        loopback_target(parsed.last("4"), DEFAULT_V4),
        loopback_target(parsed.last("6"), DEFAULT_V6),
    ];
    let mut allowed: Vec<OsString> = EVERYWHERE.map(OsString::from).into();
    for target in targets.into_iter().flatten() {
        allowed.push(target.to_string().into());
    }
    allowed.extend(parsed.all("allow-destination").map(OsStr::to_owned));
    allowed.into_iter().fold(
        native.switch_if("--dynamic-destination", true),
        |native, destination| native.option("--allow-destination", destination),
    )
}

/// Returns the target if it is on loopback, which the networks of [`EVERYWHERE`] do not allow. Resolves its name now.
fn loopback_target(value: Option<&OsStr>, default: SocketAddr) -> Option<SocketAddr> {
    let rule = match value {
        Some(text) => {
            let target: Target = target(text).to_str()?.parse().ok()?;
            target.targets().ok()?.for_client(default.ip())?
        }
        None => default.into(),
    };
    match rule {
        TargetRule::Fixed(target) if target.0.ip().is_loopback() => Some(target.0),
        _ => None,
    }
}

/// Parses an integer as `flag.Int` does: `0x`, `0o`, `0b`, a leading 0 for octal, `_` between digits.
fn integer(text: &str) -> Option<i64> {
    let (negative, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = magnitude.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (lower.get(2..)?, 16),
        [b'0', b'o', ..] => (lower.get(2..)?, 8),
        [b'0', b'b', ..] => (lower.get(2..)?, 2),
        [b'0', _, ..] => (lower.get(1..)?, 8),
        _ => (lower.as_str(), 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i64::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

pub(super) const FLAGS: &[Opt] = &[
    Opt::with_value(&["4"]),
    Opt::with_value(&["6"]),
    // An extension of peername's, which go-mmproxy does not have.
    Opt::with_value(&["allow-destination"]),
    Opt::with_value(&["allowed-subnets"]),
    Opt::with_value(&["close-after"]),
    Opt::switch(&["dynamic-destination"]),
    Opt::with_value(&["l"]),
    Opt::switch(&["listen-transparent"]),
    Opt::with_value(&["listeners"]),
    Opt::with_value(&["mark"]),
    Opt::with_value(&["p"]),
    Opt::with_value(&["v"]),
];

const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

pub(super) const USAGE: &str = "Usage of go-mmproxy (peername in its place; see docs/migrate.md):
  -4 address              where IPv4 clients go (default 127.0.0.1:443)
  -6 address              where IPv6 clients go (default [::1]:443)
  -allowed-subnets file   networks of the balancers, one a line (default: every peer)
  -close-after seconds    idle UDP sessions end (default 60)
  -dynamic-destination    connect to the destination in the header
  -allow-destination net  with it: further networks, CIDR[:PORT[-PORT]] (peername only)
  -l address              listen address (default 0.0.0.0:8443)
  -listen-transparent     IP_TRANSPARENT on the listening socket
  -listeners n            event loops, each with a listening socket (default 1)
  -mark n                 SO_MARK of connections to the backend (default 0: none)
  -p protocol             tcp or udp (default tcp)
  -v level                0: no connections, 1: their errors, 2: all (default 0)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_by_the_rules_of_go() {
        let table = [
            ("123", Some(123)),
            ("0x7b", Some(123)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("0b11", Some(3)),
            ("1_000", Some(1000)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("0", Some(0)),
            ("", None),
            ("--5", None),
            ("0x-5", None),
            ("five", None),
            ("08", None),
        ];
        for (text, value) in table {
            assert_eq!(integer(text), value, "{text}");
        }
    }
}
