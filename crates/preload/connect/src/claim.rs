//! The claim: the contents of the header, and the ports it applies to. It is read from the environment once, when the library
//! is loaded: a program may overwrite its environment with its title (setproctitle(3)).
//!
//! | variable | |
//! |---|---|
//! | `PEERNAME_SOURCE` | the client: `192.0.2.1:4711`, `[2001:db8::1]:4711` |
//! | `PEERNAME_PROXY_VERSION` | 1 or 2; 2 by default |
//! | `PEERNAME_PORTS` | connections to these ports: `80,443,8000-8010`; all by default |
//!
//! Under the name `libproxyproto_connect.so`, and without PEERNAME_SOURCE, the variables of libproxyproto are read as
//! libproxyproto reads them: LIBPROXYPROTO_ADDR (default 127.0.0.1), LIBPROXYPROTO_PORT (8080) and LIBPROXYPROTO_VERSION (0 for
//! no header, 1 or 2; default 2). An invalid version ends the program at its start, as with libproxyproto. So does an invalid
//! address, with which libproxyproto continues without headers.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

use peername_identity::PortSet;
use peername_preload_common::environment::{atoi, is_preloaded, variable};
use peername_preload_common::kernel;
use peername_proto::{PlainHeader, address, port_range};

/// The claimed client, and the version of the header that names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    source: SocketAddr,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Claim {
    /// Whether a connection to this port begins with a header.
    pub(crate) fn covers(self, port: u16) -> bool {
        !HAS_PORTS.load(Ordering::Relaxed) || PORTS.contains(port)
    }

    /// Builds the header of a connection to this address.
    pub(crate) fn header(self, to: SocketAddr) -> PlainHeader {
        let to = SocketAddr::new(reached_ip(to.ip().to_canonical()), to.port());
        match self.version {
            Version::V1 => PlainHeader::v1(self.source, to),
            Version::V2 => PlainHeader::v2(self.source, to),
        }
    }
}

/// Returns the address that connect(2) reaches: the unspecified address means this host (ip(7)).
fn reached_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Returns the claim, which the first call reads and caches; concurrent first calls read the same. `None` if no connection
/// is to have a header.
pub(crate) fn claim() -> Option<Claim> {
    let version = match CACHED.load(Ordering::Acquire) {
        UNREAD => return read_claim(),
        NO_CLAIM => return None,
        CLAIM_V1 => Version::V1,
        _ => Version::V2,
    };
    let high = u128::from(IP_HIGH.load(Ordering::Relaxed));
    let low = u128::from(IP_LOW.load(Ordering::Relaxed));
    let ip = Ipv6Addr::from_bits(high << 64 | low).to_canonical();
    let source = SocketAddr::new(ip, PORT.load(Ordering::Relaxed));
    Some(Claim { source, version })
}

fn read_claim() -> Option<Claim> {
    let claim = match variable(b"PEERNAME_SOURCE") {
        Some(source) => Some(read_peername(source)),
        None if is_preloaded(b"libproxyproto_connect.so") => read_libproxyproto(),
        None => end_program(PEERNAME_FAILED, BAD_SOURCE),
    };
    store(claim);
    claim
}

fn read_peername(source: &[u8]) -> Claim {
    let version = match variable(b"PEERNAME_PROXY_VERSION") {
        None | Some(b"2") => Version::V2,
        Some(b"1") => Version::V1,
        Some(_) => end_program(PEERNAME_FAILED, BAD_VERSION),
    };
    if let Some(list) = variable(b"PEERNAME_PORTS") {
        if insert_ports(list).is_none() {
            end_program(PEERNAME_FAILED, BAD_PORTS);
        }
        HAS_PORTS.store(true, Ordering::Relaxed);
    }
    match parse_address(source) {
        Some(source) => Claim { source, version },
        None => end_program(PEERNAME_FAILED, BAD_SOURCE),
    }
}

/// Parses `192.0.2.1:4711` or `[2001:db8::1]:4711`.
fn parse_address(text: &[u8]) -> Option<SocketAddr> {
    let mut parts = text.rsplitn(2, |&byte| byte == b':');
    let port = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let ip = parts.next()?;
    let ip = match ip.strip_prefix(b"[") {
        Some(rest) => address(rest.strip_suffix(b"]")?).filter(IpAddr::is_ipv6),
        None => address(ip).filter(IpAddr::is_ipv4),
    };
    Some(SocketAddr::new(ip?, port))
}

fn insert_ports(list: &[u8]) -> Option<()> {
    for range in list.split(|&byte| byte == b',') {
        for port in port_range(str::from_utf8(range).ok()?)? {
            PORTS.insert(port);
        }
    }
    Some(())
}

fn read_libproxyproto() -> Option<Claim> {
    let verbose = variable(b"LIBPROXYPROTO_DEBUG").is_some();
    VERBOSE.store(verbose, Ordering::Relaxed);
    let version = match variable(b"LIBPROXYPROTO_VERSION").map(atoi) {
        Some(0) => return None,
        Some(1) => Version::V1,
        None | Some(2) => Version::V2,
        Some(_) => end_program(LIBPROXYPROTO_FAILED, BAD_LIBPROXYPROTO_VERSION),
    };
    let ip = variable(b"LIBPROXYPROTO_ADDR").unwrap_or(b"127.0.0.1");
    let port = variable(b"LIBPROXYPROTO_PORT").map_or(8080, atoi);
    match address(ip) {
        Some(ip) => Some(Claim {
            // A number that does not fit in 16 bits wraps, as it does in libproxyproto.
            source: SocketAddr::new(ip, port as u16),
            version,
        }),
        None => end_program(LIBPROXYPROTO_FAILED, BAD_LIBPROXYPROTO_ADDRESS),
    }
}

fn store(claim: Option<Claim>) {
    let Some(Claim { source, version }) = claim else {
        CACHED.store(NO_CLAIM, Ordering::Release);
        return;
    };
    let ip = match source.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    IP_HIGH.store((ip >> 64) as u64, Ordering::Relaxed);
    IP_LOW.store(ip as u64, Ordering::Relaxed);
    PORT.store(source.port(), Ordering::Relaxed);
    let cached = match version {
        Version::V1 => CLAIM_V1,
        Version::V2 => CLAIM_V2,
    };
    CACHED.store(cached, Ordering::Release);
}

/// Writes a line to standard error, if LIBPROXYPROTO_DEBUG is set.
pub(crate) fn log_debug(line: &str) {
    if VERBOSE.load(Ordering::Relaxed) {
        kernel::write_stderr(line);
    }
}

/// Ends a program at its start if its connections could not begin with the right header.
fn end_program(code: c_int, message: &str) -> ! {
    kernel::write_stderr(message);
    kernel::exit(code)
}

static VERBOSE: AtomicBool = AtomicBool::new(false);
/// Whether the claim was read, and the version of its header.
static CACHED: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = 0;
const NO_CLAIM: u8 = 1;
const CLAIM_V1: u8 = 2;
const CLAIM_V2: u8 = 3;

/// The address of the client; an IPv4 address is mapped into IPv6.
static IP_HIGH: AtomicU64 = AtomicU64::new(0);
static IP_LOW: AtomicU64 = AtomicU64::new(0);
static PORT: AtomicU16 = AtomicU16::new(0);

/// Whether only connections to [`PORTS`] have a header.
static HAS_PORTS: AtomicBool = AtomicBool::new(false);
static PORTS: PortSet<'static> = PortSet::new(&PORT_WORDS);
static PORT_WORDS: [AtomicU64; PortSet::WORDS] = [const { AtomicU64::new(0) }; PortSet::WORDS];

/// The exit code of `peername exec` for a failure of its own.
const PEERNAME_FAILED: c_int = 125;
/// The exit code of libproxyproto_connect.so.
const LIBPROXYPROTO_FAILED: c_int = 111;

const BAD_SOURCE: &str = "peername: libpeername_connect.so: PEERNAME_SOURCE must be the client's address and port: \
    192.0.2.1:4711 or [2001:db8::1]:4711\n";
const BAD_VERSION: &str = "peername: libpeername_connect.so: PEERNAME_PROXY_VERSION is 1 or 2\n";
const BAD_PORTS: &str =
    "peername: libpeername_connect.so: PEERNAME_PORTS is a list such as 80,443,8000-8010\n";
const BAD_LIBPROXYPROTO_VERSION: &str = "peername: libproxyproto_connect.so: LIBPROXYPROTO_VERSION is 0, 1 or 2 for \
    clients (3 is for servers)\n";
const BAD_LIBPROXYPROTO_ADDRESS: &str =
    "peername: libproxyproto_connect.so: LIBPROXYPROTO_ADDR is an IPv4 or IPv6 address\n";
