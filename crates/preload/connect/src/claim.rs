//! The claim: the contents of the header, and the ports it applies to. Read from the environment once, when the library
//! is loaded: programs overwrite it with their titles (setproctitle(3)).
//!
//! | variable | |
//! |---|---|
//! | `PEERNAME_SOURCE` | the client: `192.0.2.1:4711`, `[2001:db8::1]:4711` |
//! | `PEERNAME_PROXY_VERSION` | 1 or 2; 2 by default |
//! | `PEERNAME_PORTS` | connections to these ports: `80,443,8000-8010`; all by default |
//!
//! Under the name `libproxyproto_connect.so`, and without PEERNAME_SOURCE, the variables of that project are read as it
//! reads them: LIBPROXYPROTO_ADDR (default 127.0.0.1), LIBPROXYPROTO_PORT (8080) and LIBPROXYPROTO_VERSION (0 for no
//! header, 1 or 2; default 2). An invalid version ends the program at its start, in that project as here. An invalid
//! address does so here only; there the program continues without headers.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

use peername_identity::PortSet;
use peername_preload_common::environment::{is_preloaded, number, variable};
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
        !LIMITED.load(Ordering::Relaxed) || PORTS.contains(port)
    }

    /// Builds the header of a connection to this address.
    pub(crate) fn header(self, to: SocketAddr) -> PlainHeader {
        let to = SocketAddr::new(reached(to.ip().to_canonical()), to.port());
        match self.version {
            Version::V1 => PlainHeader::v1(self.source, to),
            Version::V2 => PlainHeader::v2(self.source, to),
        }
    }
}

/// Returns the address that connect(2) reaches: the unspecified address means this host (ip(7)).
fn reached(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Returns the claim, which the first call reads and caches; concurrent first calls read the same. `None` if no connection
/// is to have a header.
pub(crate) fn claim() -> Option<Claim> {
    let version = match FOUND.load(Ordering::Acquire) {
        UNKNOWN => return read_claim(),
        NOTHING => return None,
        ONE => Version::V1,
        _ => Version::V2,
    };
    let source = SocketAddr::new(
        IpAddr::V6(Ipv6Addr::from_bits(
            u128::from(IP_HIGH.load(Ordering::Relaxed)) << 64
                | u128::from(IP_LOW.load(Ordering::Relaxed)),
        ))
        .to_canonical(),
        PORT.load(Ordering::Relaxed),
    );
    Some(Claim { source, version })
}

fn read_claim() -> Option<Claim> {
    let claim = match variable(b"PEERNAME_SOURCE") {
        Some(source) => Some(read_native(source)),
        None if is_preloaded(b"libproxyproto_connect.so") => read_libproxyproto(),
        None => refuse(NATIVE_FAILURE, NO_SOURCE),
    };
    store(claim);
    claim
}

fn read_native(source: &[u8]) -> Claim {
    let version = match variable(b"PEERNAME_PROXY_VERSION") {
        None | Some(b"2") => Version::V2,
        Some(b"1") => Version::V1,
        Some(_) => refuse(NATIVE_FAILURE, BAD_VERSION),
    };
    if let Some(list) = variable(b"PEERNAME_PORTS") {
        if insert_ports(list).is_none() {
            refuse(NATIVE_FAILURE, BAD_PORTS);
        }
        LIMITED.store(true, Ordering::Relaxed);
    }
    match parse_address(source) {
        Some(source) => Claim { source, version },
        None => refuse(NATIVE_FAILURE, NO_SOURCE),
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
    let version = match variable(b"LIBPROXYPROTO_VERSION").map(number) {
        Some(0) => return None,
        Some(1) => Version::V1,
        None | Some(2) => Version::V2,
        Some(_) => refuse(THEIR_FAILURE, THEIR_VERSION),
    };
    let ip = variable(b"LIBPROXYPROTO_ADDR").unwrap_or(b"127.0.0.1");
    let port = variable(b"LIBPROXYPROTO_PORT").map_or(8080, number);
    match address(ip) {
        Some(ip) => Some(Claim {
            // A number that does not fit in 16 bits wraps, as it does in libproxyproto.
            source: SocketAddr::new(ip, port as u16),
            version,
        }),
        None => refuse(THEIR_FAILURE, THEIR_ADDRESS),
    }
}

fn store(claim: Option<Claim>) {
    let Some(Claim { source, version }) = claim else {
        FOUND.store(NOTHING, Ordering::Release);
        return;
    };
    let ip = match source.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    IP_HIGH.store((ip >> 64) as u64, Ordering::Relaxed);
    IP_LOW.store(ip as u64, Ordering::Relaxed);
    PORT.store(source.port(), Ordering::Relaxed);
    let found = if version == Version::V1 { ONE } else { TWO };
    FOUND.store(found, Ordering::Release);
}

/// Writes a line to standard error, if LIBPROXYPROTO_DEBUG asks for lines.
pub(crate) fn debug(line: &str) {
    if VERBOSE.load(Ordering::Relaxed) {
        kernel::complain(line);
    }
}

/// Ends a program at its start if its connections could not begin with the right header.
fn refuse(code: c_int, why: &str) -> ! {
    kernel::complain(why);
    kernel::exit(code)
}

static VERBOSE: AtomicBool = AtomicBool::new(false);
static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NOTHING: u8 = 1;
const ONE: u8 = 2;
const TWO: u8 = 3;

/// An IPv4 address as `::ffff:192.0.2.1`.
static IP_HIGH: AtomicU64 = AtomicU64::new(0);
static IP_LOW: AtomicU64 = AtomicU64::new(0);
static PORT: AtomicU16 = AtomicU16::new(0);

/// Whether only connections to the ports below have a header.
static LIMITED: AtomicBool = AtomicBool::new(false);
static PORTS: PortSet<'static> = PortSet::new(&PORT_WORDS);
static PORT_WORDS: [AtomicU64; PortSet::WORDS] = [const { AtomicU64::new(0) }; PortSet::WORDS];

/// The exit codes of `peername exec` for a failure of its own, and of libproxyproto_connect.so.
const NATIVE_FAILURE: c_int = 125;
const THEIR_FAILURE: c_int = 111;

const NO_SOURCE: &str = "peername: libpeername_connect.so: PEERNAME_SOURCE must be the client's address and port: \
    192.0.2.1:4711 or [2001:db8::1]:4711\n";
const BAD_VERSION: &str = "peername: libpeername_connect.so: PEERNAME_PROXY_VERSION is 1 or 2\n";
const BAD_PORTS: &str =
    "peername: libpeername_connect.so: PEERNAME_PORTS is a list such as 80,443,8000-8010\n";
const THEIR_VERSION: &str = "peername: libproxyproto_connect.so: LIBPROXYPROTO_VERSION is 0, 1 or 2 for \
    clients (3 is for servers)\n";
const THEIR_ADDRESS: &str =
    "peername: libproxyproto_connect.so: LIBPROXYPROTO_ADDR is an IPv4 or IPv6 address\n";
