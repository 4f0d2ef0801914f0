//! Translates the command line of udppp: mode 1 is the sender of UDP headers, mode 2 the receiver.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use getopts::Matches;

use super::native_command::{NativeCommand, is_listener};
use super::program::Program;
use super::translation::{EarlyExit, Environment, TRUST_ANY_WARNING, Translation};

pub(super) fn translate(
    args: &[OsString],
    environment: Environment<'_>,
) -> Result<Translation, EarlyExit> {
    let matches = definition()
        .parse(args)
        .map_err(|error| usage_error(&error.to_string()))?;
    let options = Options::read(&matches)?;
    let mut notes = Vec::new();
    let native = match options.mode {
        Mode::Forward => forward(&options, matches.opt_present("proxyprotocol"), environment),
        Mode::Proxy(host) => {
            notes.push(format!(
                "{TRUST_ANY_WARNING}: use the native command with --trust and the balancers' networks"
            ));
            proxy(&options, host, &mut notes)
        }
    };
    let native = native
        .option("--close-after", "180s")
        .option("--log-format", "text")
        .switch_if("--quiet", matches.opt_present("slient"))
        .switch_if("-v", !matches.opt_present("slient"));
    Ok(Translation {
        program: Program::Udppp,
        words: native.into_words(),
        notes,
    })
}

/// Translates mode 1: with `-p` a header on every datagram, else none.
fn forward(options: &Options, has_header: bool, environment: Environment<'_>) -> NativeCommand {
    let bind = options.bind.as_deref().unwrap_or("127.0.0.1");
    NativeCommand::new("forward")
        .option("--listen", host_port(bind, options.local_port))
        .option("--to", host_port(&options.host, options.remote_port))
        .option("--protocol", "udp")
        .option("--proxy-version", if has_header { "2" } else { "none" })
        .option("--workers", environment.cores.to_string())
}

/// Translates mode 2. udppp kept the client's address, but not its port. Without `-b` this listens on all addresses, as
/// udppp did even with it.
fn proxy(options: &Options, host: IpAddr, notes: &mut Vec<String>) -> NativeCommand {
    let bind = options.bind.as_deref().unwrap_or("0.0.0.0");
    let listen = host_port(bind, options.local_port);
    let mut target = |loopback: IpAddr| {
        if loopback.is_ipv4() == host.is_ipv4() {
            return Some(SocketAddr::new(host, options.remote_port).to_string());
        }
        // The target of the other family is a default, so it must not keep the proxy from starting.
        let default = SocketAddr::new(loopback, options.remote_port);
        if !is_listener(OsStr::new(&listen), default) {
            return Some(default.to_string());
        }
        notes.push(format!(
            "clients of the other family than --host's are refused: {default}, where they would go, is \
             this proxy"
        ));
        None
    };
    let target_v4 = target(Ipv4Addr::LOCALHOST.into());
    let target_v6 = target(Ipv6Addr::LOCALHOST.into());
    NativeCommand::new("proxy")
        .option("--listen", &listen)
        .option("--protocol", "udp")
        .option_if("--target-v4", target_v4)
        .option_if("--target-v6", target_v6)
        .option("--trust", "any")
        .option("--source-policy", "allow-local")
        .option("--source-port", "any")
}

struct Options {
    mode: Mode,
    local_port: u16,
    remote_port: u16,
    host: String,
    bind: Option<String>,
}

enum Mode {
    Forward,
    /// With the address of the backend.
    Proxy(IpAddr),
}

impl Options {
    fn read(matches: &Matches) -> Result<Self, EarlyExit> {
        let text = |name| matches.opt_str(name).unwrap_or_default();
        let port = |name| {
            let value = text(name);
            value
                .parse()
                .map_err(|_| usage_error(&format!("--{name} {value}: no port")))
        };
        let host = text("host");
        let mode = match text("mode").as_str() {
            "1" => Mode::Forward,
            "2" => {
                let literal = host.parse().map_err(|_| {
                    usage_error(&format!("--host {host}: mode 2 needs an IP address"))
                })?;
                Mode::Proxy(literal)
            }
            mode => return Err(usage_error(&format!("unknown mode {mode}"))),
        };
        Ok(Self {
            mode,
            local_port: port("local-port")?,
            remote_port: port("remote-port")?,
            host,
            bind: matches.opt_str("bind"),
        })
    }
}

fn host_port(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

fn usage_error(text: &str) -> EarlyExit {
    EarlyExit::failure(255, format!("{text}\n{USAGE}"))
}

fn definition() -> getopts::Options {
    let mut definition = getopts::Options::new();
    definition
        .reqopt("m", "mode", "", "")
        .reqopt("l", "local-port", "", "")
        .reqopt("r", "remote-port", "", "")
        .reqopt("h", "host", "", "")
        .optopt("b", "bind", "", "")
        .optflag("p", "proxyprotocol", "")
        .optflag("s", "slient", "");
    definition
}

const USAGE: &str =
    "Usage: udppp -m MODE [-b BIND_ADDR] -l LOCAL_PORT -h REMOTE_ADDR -r REMOTE_PORT -p
(peername in its place; see docs/migrate.md)

Options:
    -m, --mode MODE     1: send on behind a header, 2: receive with a header
    -l, --local-port LOCAL_PORT
                        the port to listen on
    -r, --remote-port REMOTE_PORT
                        the port to send to
    -h, --host REMOTE_ADDR
                        the address to send to
    -b, --bind BIND_ADDR
                        the address to listen on
    -p, --proxyprotocol mode 1: with a header
    -s, --slient        no log but warnings";
