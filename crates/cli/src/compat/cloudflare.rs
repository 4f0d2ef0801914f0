//! Translates the command line of cloudflare/mmproxy; its binary is called `mmproxy`.

pub(super) mod routing_hints;

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};

use peername_daemon::value;

use super::native_command::{NativeCommand, target};
use super::parser::{self, Opt, ParsedOptions, Rules};
use super::program::Program;
use super::translation::{EarlyExit, Preflight, Translation};
use super::trust_file::valid_lines;

/// Whether cloudflare/mmproxy would accept this command line.
pub(super) fn understands(args: &[OsString]) -> bool {
    parser::parse(Rules::GetoptLong, OPTIONS, args).is_ok_and(|given| given.others == 0)
}

/// Whether the command line has all options that cloudflare/mmproxy requires.
pub(super) fn is_complete(args: &[OsString]) -> bool {
    parser::parse(Rules::GetoptLong, OPTIONS, args)
        .is_ok_and(|given| REQUIRED.iter().all(|(name, _)| given.has(name)))
}

pub(super) fn translate(args: &[OsString]) -> Result<Translation, EarlyExit> {
    let given = parser::parse(Rules::GetoptLong, OPTIONS, args)
        .map_err(|error| EarlyExit::failure(255, format!("mmproxy: {error}")))?;
    if given.has("help") {
        return Err(EarlyExit::failure(255, USAGE.to_owned()));
    }
    if given.others > 0 {
        return Err(abort("No extra parameters allowed."));
    }
    for (name, missing) in REQUIRED {
        if !given.has(name) {
            return Err(abort(missing));
        }
    }
    let (mark, table) = (number(&given, "mark", 123)?, number(&given, "table", 100)?);
    let targets = [target_v4(&given)?, target_v6(&given)?];
    let [v4, v6] = &targets;
    let mut notes = Vec::new();
    let networks = given.last("allowed-networks").unwrap_or_default();
    let native = NativeCommand::new("proxy")
        .option_if("--listen", given.last("listen"))
        .option("--target-v4", v4)
        .option("--target-v6", v6)
        .trust(valid_lines(networks, &mut notes))
        .option("--source-policy", "allow-local")
        .option_if(
            "--source-port",
            (!given.has("force-real-client-port")).then_some("any"),
        )
        .option("--mark", mark.to_string())
        .switch_if("--no-sandbox", given.has("do-not-sandbox"))
        .option("--workers", "1")
        .option("--log-format", "text")
        .switch_if("-v", !given.has("verbose"))
        .switch_if("-vv", given.has("verbose"));
    Ok(Translation {
        program: Program::Cloudflare,
        words: native.words(),
        notes,
        preflight: Some(Preflight {
            mark,
            table,
            targets: targets.map(|target| value::address(&target.to_string_lossy()).ok()),
            quiet: given.has("quiet"),
        }),
    })
}

fn number(given: &ParsedOptions, name: &str, default: u32) -> Result<u32, EarlyExit> {
    let number = given.parsed(name, |text| text.parse().ok());
    number
        .map(|number| number.unwrap_or(default))
        .map_err(|value| abort(&format!("{value} is not a valid --{name}")))
}

/// Parses `-4`. cloudflare/mmproxy accepted an IPv6 target here, and mapped the client's address (`::ffff:`). Such an
/// address can connect to an IPv4-mapped target only, which is an IPv4 one.
fn target_v4(given: &ParsedOptions) -> Result<OsString, EarlyExit> {
    let text = target(given.last("target-v4").unwrap_or_default());
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
fn target_v6(given: &ParsedOptions) -> Result<OsString, EarlyExit> {
    let text = target(given.last("target-v6").unwrap_or_default());
    match literal(&text) {
        Some(addr) if addr.is_ipv4() => Err(abort(&format!(
            "-6 {addr}: IPv6 clients can't connect to an IPv4 address; name an IPv6 one, such as \
             -6 [::1]:{}",
            addr.port()
        ))),
        _ => Ok(text),
    }
}

fn literal(text: &OsStr) -> Option<SocketAddr> {
    text.to_str()?.parse().ok()
}

fn abort(text: &str) -> EarlyExit {
    EarlyExit::failure(1, format!("[-] PROGRAM ABORT : {text}"))
}

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

const OPTIONS: &[Opt] = &[
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

const USAGE: &str = "Usage: (peername in the place of mmproxy; see docs/migrate.md)

    mmproxy [ options ] --allowed-networks FILE -l LISTEN_ADDR -4 TARGET_V4_ADDR -6 TARGET_V6_ADDR

 -l, --listen LISTEN_ADDR        listen address, such as 0.0.0.0:2222
 -4, --target-v4 ADDR            where IPv4 clients go, such as 127.0.0.1:22
 -6, --target-v6 ADDR            where IPv6 clients go, such as [::1]:22
 -a, --allowed-networks FILE     networks of the balancers, one a line
 -m, --mark MARK                 SO_MARK of connections to the backend (default 123)
 -t, --table TABLE               routing table of the printed suggestions (default 100)
 -q, --quiet                     no suggestions
 -v, --verbose                   log more
 -P, --force-real-client-port    keep the client's port too
 -N, --do-not-sandbox            do not confine the process after its start
 -h, --help                      print this";
