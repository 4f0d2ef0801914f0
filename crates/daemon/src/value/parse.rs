//! Parsers of option values.
//!
//! # Errors
//!
//! The text has none of the accepted forms, or a name does not resolve. The message lists the forms.

use std::borrow::Cow;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use data_encoding::HEXLOWER_PERMISSIVE;
use peername_observe::shell::quote;
use peername_proto::{Vendor, is_reversed_port_range, kind, parse_unbracketed, port_range};
use peername_sys::resolve as names;

/// Parses a duration: `500ms`, `5s`, `2m`; at most a year, which can be added to any clock's current time.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= MAX_DURATION => Ok(duration),
        Ok(_) => Err("at most a year (365d)".to_owned()),
        // Such a number may mean milliseconds.
        Err(_) if is_number(text) && text.len() > 2 => Err(format!(
            "the unit is missing, as in \"{text}ms\" or \"{text}s\""
        )),
        Err(_) if is_number(text) => Err(format!("the unit is missing, as in \"{text}s\"")),
        Err(_) => Err("use a number and a unit: 500ms, 5s, 2m".to_owned()),
    }
}

/// As [`duration`], but at least 100 ms.
pub fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        timeout if timeout >= MIN_TIMEOUT => Ok(timeout),
        _ => Err("at least 100ms".to_owned()),
    }
}

/// Returns a parser of numbers of at least `low` and at most `high`.
pub fn number(low: usize, high: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ if high >= MAX_INTEGER => Err(format!("use a number of at least {low}")),
        _ => Err(format!("use a number from {low} to {high}")),
    }
}

/// The largest integer of TOML. As a bound it means that there is none.
pub const MAX_INTEGER: usize = isize::MAX.unsigned_abs();

/// Returns the path of an `@FILE` in a list of networks.
pub fn list_file(word: &str) -> Option<&Path> {
    word.strip_prefix('@').map(Path::new)
}

/// Parses a firewall mark, decimal or hexadecimal: `123`, `0x7b`.
pub fn mark(text: &str) -> Result<u32, String> {
    let mark = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    mark.map_err(|_| "use a number: 123, 0x7b; 0 for none".to_owned())
}

/// Parses a port or a range of ports, as `10000-20000` or, in the syntax of iptables, `10000:20000`.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    port_range(text).ok_or_else(|| {
        let why = if is_reversed_port_range(text) {
            "the range is reversed: write the lower port first, as in 10000-20000"
        } else {
            "use a port or a range of them: 443, 10000-20000"
        };
        why.to_owned()
    })
}

/// Parses `1.2.3.4:80`, `[::1]:80` or `host:port`. A name is resolved at once; its first address is used.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    addresses(text)?.into_iter().next().ok_or_else(no_address)
}

/// As [`address`], with all addresses of the name, at least one.
pub(super) fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(addr) = text.parse() {
        return Ok(vec![addr]);
    }
    let found: Vec<_> = resolve_with_advice(text)?.collect();
    if found.is_empty() {
        return Err(no_address());
    }
    Ok(found)
}

fn no_address() -> String {
    format!("the name has no address; {FORM}")
}

/// As [`resolve`], but text that is no `host:port` is refused with advice.
fn resolve_with_advice(text: &str) -> Result<impl Iterator<Item = SocketAddr> + use<>, String> {
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(format!(
            "a URL is not taken here: {FORM}, without {scheme}://"
        ));
    }
    if let Some(missing) = missing_part(text) {
        return Err(missing);
    }
    resolve(text).map_err(|error| format!("{error}; {}", advice(text, &error)))
}

/// Says which part of an address with its port is missing: the port, the address, or the brackets of IPv6.
pub fn missing_part(text: &str) -> Option<String> {
    if let Some(meant) = parse_unbracketed(text) {
        return Some(format!(
            "an IPv6 address needs brackets before its port, as in {meant}"
        ));
    }
    let unbracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    if let Ok(ip) = unbracketed.parse() {
        let example = SocketAddr::new(ip, EXAMPLE_PORT);
        return Some(format!("the port is missing, as in {example}"));
    }
    port_alone(text).map(|port| format!("the address is missing, as in 127.0.0.1:{port}"))
}

/// Says what to do about text that did not resolve: the form of an address, unless it had that.
fn advice(text: &str, error: &io::Error) -> String {
    match (error.kind(), text.rsplit_once(':')) {
        (io::ErrorKind::InvalidInput, Some((_, port)))
            if is_number(port) && port.parse::<u16>().is_err() =>
        {
            "a port is a number from 1 to 65535".to_owned()
        }
        (io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied, _) | (_, None) => {
            FORM.to_owned()
        }
        (_, Some((host, _))) => format!("`getent hosts {}` looks it up, too", quote(host)),
    }
}

/// Whether text is digits only.
pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The port of text that has no address: `443`, `:443`, `*:443`.
pub(super) fn port_alone(text: &str) -> Option<u16> {
    let prefixes = ["*:", ":"];
    prefixes
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text)
        .parse()
        .ok()
}

const FORM: &str = "use 192.0.2.1:80, [2001:db8::1]:80 or host:80";
const EXAMPLE_PORT: u16 = 443;

/// Resolves `host:port`. Four numbers that are no address, and a host with punctuation, are not looked up, because they never
/// become a name. In a process that may not resolve names, text that can't be a name is reported as invalid, and only a name as
/// forbidden.
fn resolve(text: &str) -> io::Result<impl Iterator<Item = SocketAddr> + use<>> {
    let text = &*unbracket_link_local(text);
    let allowed = names::check_allowed();
    if allowed.is_err() || has_four_numbers(text) || has_punctuation(text) {
        check_host_and_port(text)?;
    }
    allowed?;
    HAS_RESOLVED_NAMES.store(true, Ordering::Relaxed);
    text.to_socket_addrs().inspect_err(note_failed_lookup)
}

/// Whether the host of `host:port` is four numbers with dots between them.
fn has_four_numbers(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.split('.').count() == 4
        && host
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Whether the host of `host:port` has a character of ASCII that no name has.
fn has_punctuation(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    !is_link_local(host) && !host.chars().all(may_be_in_a_name)
}

fn may_be_in_a_name(c: char) -> bool {
    !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// Whether it is an IPv6 address with the name of its interface, `fe80::1%eth0`, whose index getaddrinfo(3) looks up.
fn is_link_local(host: &str) -> bool {
    let address = host.split_once('%').map(|(address, _)| address);
    address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// Removes the brackets of `[fe80::1%eth0]:80`, which getaddrinfo(3) does not read.
fn unbracket_link_local(text: &str) -> Cow<'_, str> {
    let parts = text
        .strip_prefix('[')
        .and_then(|rest| rest.rsplit_once("]:"));
    match parts {
        Some((host, port)) if is_link_local(host) => Cow::Owned(format!("{host}:{port}")),
        _ => Cow::Borrowed(text),
    }
}

/// Checks host and port without a lookup. The standard library does not check the host. The last label of a name is not a
/// number (RFC 1123, section 2.1).
fn check_host_and_port(text: &str) -> io::Result<()> {
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let invalid_address = || invalid("invalid socket address");
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid_address)?;
    port.parse::<u16>()
        .map_err(|_| invalid("invalid port value"))?;
    let last_label = host.rsplit('.').find(|label| !label.is_empty());
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    if has_punctuation(text) || last_label.is_none_or(is_number) {
        return Err(invalid_address());
    }
    Ok(())
}

/// Whether this process has resolved a name. A reload resolves it again.
pub fn has_resolved_names() -> bool {
    HAS_RESOLVED_NAMES.load(Ordering::Relaxed)
}

static HAS_RESOLVED_NAMES: AtomicBool = AtomicBool::new(false);

/// Whether a lookup failed in this process: the next start may succeed.
pub fn has_failed_lookup() -> bool {
    HAS_FAILED_LOOKUP.load(Ordering::Relaxed)
}

/// Records that a name did not resolve, but not text that can't be a name: the standard library reports that as invalid input.
fn note_failed_lookup(error: &io::Error) {
    if error.kind() != io::ErrorKind::InvalidInput {
        HAS_FAILED_LOOKUP.store(true, Ordering::Relaxed);
    }
}

/// A global flag, because clap and the TOML parser discard all but the text of an error.
static HAS_FAILED_LOOKUP: AtomicBool = AtomicBool::new(false);

/// Parses a TLV's type, by name or number: `authority`, `aws-vpce-id`, `0xEA`, `234`.
pub fn tlv_kind(text: &str) -> Result<u8, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    number
        .or_else(|| kind::from_name(text))
        .or_else(|| Vendor::kind_from_name(text))
        .ok_or_else(|| {
            "use a number (0xEA, 234) or a name: alpn, authority, unique_id, netns, …".to_owned()
        })
}

/// A TLV for a header to be sent: `TYPE=VALUE`, the value as text or as `hex:…`. If the type is a vendor's name, text is an id in
/// the vendor's notation, as `--require-tlv` takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tlv {
    /// The type.
    pub kind: u8,
    /// The value.
    pub value: Vec<u8>,
}

impl FromStr for Tlv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text
            .split_once('=')
            .ok_or("use TYPE=VALUE, such as authority=example.org")?;
        let value = match (value.strip_prefix("hex:"), Vendor::kind_from_name(kind)) {
            (Some(hex), _) => HEXLOWER_PERMISSIVE
                .decode(hex.as_bytes())
                .map_err(|_| "hex: needs an even number of hex digits")?,
            (None, Some(vendor)) => Vendor::encode(vendor, value)?,
            (None, None) => value.into(),
        };
        let kind = tlv_kind(kind)?;
        Ok(Self { kind, value })
    }
}

const MIN_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_needs_a_unit() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(duration("500000000000y").is_err());
        let error = |text: &str| duration(text).unwrap_err();
        assert_eq!(error("30"), "the unit is missing, as in \"30s\"");
        assert_eq!(
            error("500"),
            "the unit is missing, as in \"500ms\" or \"500s\""
        );
    }

    #[test]
    fn interface_of_a_link_local_address_is_no_punctuation() {
        assert!(!has_punctuation("fe80::1%lo:80"));
        assert!(has_punctuation("a%lo:80"));
    }

    #[test]
    fn link_local_address_with_its_interface_may_have_brackets() {
        let addr: SocketAddr = "[fe80::1%1]:80".parse().unwrap();
        for text in ["[fe80::1%1]:80", "[fe80::1%lo]:80", "fe80::1%lo:80"] {
            assert_eq!(address(text), Ok(addr), "{text}");
        }
        assert!(address("[a%lo]:80").is_err());
    }

    #[test]
    fn tlv_has_a_name_or_a_number_and_its_value_is_text_or_hex() {
        let tlv = |text: &str| text.parse::<Tlv>();
        for (text, kind, value) in [
            ("authority=a.example", 2, &b"a.example"[..]),
            ("unique-id=hex:00ff", 5, &[0, 255]),
            ("0xEA=hex:", 0xea, b""),
            ("234===", 234, b"=="),
            ("aws-vpce-id=vpce-1", 0xea, b"\x01vpce-1"),
            ("azure-linkid=258", 0xee, &[1, 2, 1, 0, 0]),
            ("gcp-psc-id=hex:00ff", 0xe0, &[0, 255]),
        ] {
            let value = value.into();
            assert_eq!(tlv(text), Ok(Tlv { kind, value }));
        }
        assert_eq!(tlv_kind("aws-vpce-id"), Ok(0xea));
        for wrong in [
            "authority",
            "colour=red",
            "0x1EA=x",
            "300=x",
            "1=hex:0",
            "1=hex:zz",
            "aws-vpce-id=1",
            "azure-linkid=x",
        ] {
            assert!(tlv(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn address_needs_a_host_and_a_port() {
        assert!(address("9000").is_err() && address("192.0.2.1").is_err());
    }

    #[test]
    fn ipv6_address_with_a_port_needs_brackets() {
        for (text, meant) in [
            ("::1:22", "[::1]:22"),
            ("2001:db8::1:22", "[2001:db8::1]:22"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.ends_with(&format!("as in {meant}")), "{error}");
        }
        let error = address("2001:db8::1").unwrap_err();
        assert!(error.contains("[2001:db8::1]:443"), "{error}");
    }

    #[test]
    fn text_that_is_no_name_is_reported_as_such() {
        let check = |text: &str| check_host_and_port(text).map_err(|error| error.to_string());
        for name in ["localhost:80", "a.example.:80", "1.example:0", "x-1:65535"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let (address, port) = ("invalid socket address", "invalid port value");
        for (text, why) in [
            ("127.0.0.1", address),
            ("127.0.0.300:80", address),
            ("[::1:80", address),
            ("1::2::3:80", address),
            (":80", address),
            ("*:80", address),
            ("0.0.0.0:80:90", address),
            ("localhost:", port),
            ("127.0.0.1:99999", port),
        ] {
            assert_eq!(check(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn port_may_stand_alone_or_begin_a_range() {
        assert_eq!(ports(" 53"), Ok(53..=53));
        assert_eq!(ports("10000-20000"), ports("10000:20000"));
        for wrong in [
            "", "0", "0-5", "5-4", "1-65536", "1-2-3", "-", "80-", "http",
        ] {
            let error = ports(wrong).unwrap_err();
            assert_eq!(
                error.contains("reversed"),
                wrong == "5-4",
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn mark_is_decimal_or_hex() {
        assert_eq!(
            (mark("123"), mark("0x7b"), mark("0")),
            (Ok(123), Ok(123), Ok(0))
        );
        assert!(mark("-1").is_err() && mark("0x").is_err() && mark("4294967296").is_err());
    }
}
