//! Translates the command line of cloudflare/mmproxy; its binary is called `mmproxy`.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};

use super::native_command::{NativeCommand, target};
use super::parser::{self, Opt, ParsedOptions, ParserRules};
use super::program::Program;
use super::translation::{EarlyExit, Translation};
use super::trust_file::trust_valid_lines;

/// Whether cloudflare/mmproxy would accept this command line.
pub(super) fn understands(args: &[OsString]) -> bool {
    parser::parse(ParserRules::GetoptLong, OPTIONS, args)
        .is_ok_and(|parsed| parsed.other_words == 0)
}

/// Whether the command line has all options that cloudflare/mmproxy requires.
pub(super) fn is_complete(args: &[OsString]) -> bool {
    parser::parse(ParserRules::GetoptLong, OPTIONS, args)
        .is_ok_and(|parsed| REQUIRED.iter().all(|(name, _)| parsed.has(name)))
}

/// Translates the command line. If `is_ambiguous`, the command line could be for mmproxy-rs, which keeps the client's port:
/// then the port is kept even without `-P`.
pub(super) fn translate(args: &[OsString], is_ambiguous: bool) -> Result<Translation, EarlyExit> {
    let parsed = parser::parse(ParserRules::GetoptLong, OPTIONS, args)
        .map_err(|error| EarlyExit::failure(255, format!("mmproxy: {error}")))?;
    if parsed.has("help") {
        return Err(EarlyExit::failure(255, USAGE.to_owned()));
    }
    if parsed.other_words > 0 {
        return Err(abort("No extra parameters allowed."));
    }
    for (name, missing) in REQUIRED {
        if !parsed.has(name) {
            return Err(abort(missing));
        }
    }
    let mark = parsed
        .parse_last("mark", |text| text.parse().ok())
        .map_err(|value| abort(&format!("{value} is not a valid --mark")))?
        .unwrap_or(DEFAULT_MARK);
    let mut notes = vec![
        "mmproxy's own checks of rules and targets are left out: `peername doctor` makes them"
            .to_owned(),
    ];
    if is_ambiguous {
        notes.push(BOTH_UNDERSTAND.to_owned());
    }
    let keeps_port = is_ambiguous || parsed.has("force-real-client-port");
    let networks = parsed.last("allowed-networks").unwrap_or_default();
    let native = NativeCommand::new("proxy")
        .option_if("--listen", parsed.last("listen"))
        .option("--target-v4", target_v4(&parsed)?)
        .option("--target-v6", target_v6(&parsed)?)
        .trust(trust_valid_lines(networks, &mut notes))
        .option("--source-policy", "allow-local")
        .option_if("--source-port", (!keeps_port).then_some("any"))
        .option("--mark", mark.to_string())
        .switch_if("--no-sandbox", parsed.has("do-not-sandbox"))
        .option("--workers", "1")
        .option("--log-format", "text")
        .switch_if("-v", !parsed.has("verbose"))
        .switch_if("-vv", parsed.has("verbose"));
    Ok(Translation {
        program: Program::Cloudflare,
        words: native.into_words(),
        notes,
    })
}

/// Parses `-4`. cloudflare/mmproxy accepted an IPv6 target here, and mapped the client's address (`::ffff:`). Such an
/// address can connect to an IPv4-mapped target only, which is an IPv4 one.
fn target_v4(parsed: &ParsedOptions) -> Result<OsString, EarlyExit> {
    let text = target(parsed.last("target-v4").unwrap_or_default());
    match literal(&text) {
        Some(addr) => match addr.ip().to_canonical() {
            IpAddr::V4(ip) => Ok(SocketAddr::new(ip.into(), addr.port()).to_string().into()),
            IpAddr::V6(_) => Err(abort(&format!(
                "-4 {addr}: IPv4 clients can't connect to an IPv6 address; name an IPv4 one, such as \
                 -4 127.0.0.1:{}",
                addr.port()
            ))),
        },
        None => Ok(text),
    }
}

/// Parses `-6`. cloudflare/mmproxy accepted an IPv4 target here, and then failed for each client.
fn target_v6(parsed: &ParsedOptions) -> Result<OsString, EarlyExit> {
    let text = target(parsed.last("target-v6").unwrap_or_default());
    match literal(&text) {
        Some(addr) if addr.is_ipv4() => Err(abort(&format!(
            "-6 {addr}: IPv6 clients can't connect to an IPv4 address; name an IPv6 one, such as \
             -6 [::1]:{}",
            addr.port()
        ))),
        _ => Ok(text),
    }
}

/// Parses the text as an address; `None` for a name.
fn literal(text: &OsStr) -> Option<SocketAddr> {
    text.to_str()?.parse().ok()
}

fn abort(text: &str) -> EarlyExit {
    EarlyExit::failure(1, format!("[-] PROGRAM ABORT : {text}"))
}

const DEFAULT_MARK: u32 = 123;
const BOTH_UNDERSTAND: &str = "mmproxy-rs and cloudflare/mmproxy both take this command line: it gets the mark of cloudflare/mmproxy, \
    and keeps the client's port, as mmproxy-rs does; to choose, call the link `mmproxy-rs` or `cloudflare-mmproxy`";

/// The options that cloudflare/mmproxy requires, each with its error where it is missing.
const REQUIRED: [(&str, &str); 4] = [
    (
        "listen",
        "Please specify -l listen address. Like: -l 0.0.0.0:1234",
    ),
    (
        "target-v4",
        "Please specify -4 target ipv4 address. Like: -4 127.0.0.1:22",
    ),
    (
        "target-v6",
        "Please specify -6 target address. Like: -6 [::1]:22",
    ),
    (
        "allowed-networks",
        "Please specify --allowed-networks filename",
    ),
];

pub(super) const OPTIONS: &[Opt] = &[
    // The README calls it --allowed-subnets.
    Opt::with_value(&["allowed-networks", "allowed-subnets", "a"]),
    Opt::with_value(&["mark", "m"]),
    Opt::with_value(&["table", "t"]),
    Opt::switch(&["quiet", "q"]),
    Opt::switch(&["verbose", "v"]),
    Opt::switch(&["do-not-sandbox", "N"]),
    Opt::switch(&["force-real-client-port", "P"]),
    Opt::switch(&["help", "h"]),
    Opt::with_value(&["listen", "l"]),
    Opt::with_value(&["target-v4", "4"]),
    Opt::with_value(&["target-v6", "6"]),
];

pub(super) const USAGE: &str = "Usage: (peername in the place of mmproxy; see docs/migrate.md)

    mmproxy [ options ] --allowed-networks FILE -l LISTEN_ADDR -4 TARGET_V4_ADDR -6 TARGET_V6_ADDR

 -l, --listen LISTEN_ADDR        listen address, such as 0.0.0.0:2222
 -4, --target-v4 ADDR            where IPv4 clients go, such as 127.0.0.1:22
 -6, --target-v6 ADDR            where IPv6 clients go, such as [::1]:22
 -a, --allowed-networks FILE     networks of the balancers, one a line
 -m, --mark MARK                 SO_MARK of connections to the backend (default 123)
 -t, --table TABLE, -q, --quiet  accepted; they were for the printed suggestions
 -v, --verbose                   log more
 -P, --force-real-client-port    keep the client's port too
 -N, --do-not-sandbox            do not confine the process after its start
 -h, --help                      print this";
