//! Builds the native command line that a translation results in.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A builder of the words after `peername`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NativeCommand(Vec<OsString>);

impl NativeCommand {
    pub(super) fn new(command: &str) -> Self {
        Self(vec![command.into()])
    }

    pub(super) fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.extend([name.into(), value.as_ref().into()]);
        self
    }

    /// Adds the option if there is a value. Without a value, both programs have the same default.
    pub(super) fn option_if(self, name: &str, value: Option<impl AsRef<OsStr>>) -> Self {
        match value {
            Some(value) => self.option(name, value),
            None => self,
        }
    }

    pub(super) fn switch_if(mut self, name: &str, on: bool) -> Self {
        if on {
            self.0.push(name.into());
        }
        self
    }

    /// Adds a `--trust` for each word.
    pub(super) fn trust(self, words: Vec<OsString>) -> Self {
        words
            .into_iter()
            .fold(self, |native, word| native.option("--trust", word))
    }

    /// Adds the targets of `-4` and `-6`, or the defaults of go-mmproxy and mmproxy-rs.
    pub(super) fn targets(
        self,
        listen: Option<&OsStr>,
        [v4, v6]: [Option<&OsStr>; 2],
        notes: &mut Vec<String>,
    ) -> Self {
        let families = [
            ("--target-v4", v4, DEFAULT_V4),
            ("--target-v6", v6, DEFAULT_V6),
        ];
        families
            .into_iter()
            .fold(self, |native, (option, value, default)| match value {
                Some(text) => native.option(option, target(text)),
                None => {
                    native.option_if("--default-target", default_target(listen, default, notes))
                }
            })
    }

    /// Adds `--close-after`: the given one, or for UDP the default of go-mmproxy and mmproxy-rs.
    pub(super) fn close_after(self, given: Option<u64>, is_udp: bool) -> Self {
        let count = given.or_else(|| is_udp.then_some(60));
        self.option_if("--close-after", count.map(seconds))
    }

    pub(super) fn into_words(self) -> Vec<OsString> {
        self.0
    }
}

/// Translates a target: connect(2) takes 0.0.0.0 and `::` for this host. Text that is no address is left to the native option.
pub(super) fn target(text: &OsStr) -> OsString {
    let addr = text.to_str().and_then(|text| text.parse().ok());
    match addr.map(|addr: SocketAddr| (addr.ip(), addr.port())) {
        Some((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)) => format!("127.0.0.1:{port}").into(),
        Some((IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)) => format!("[::1]:{port}").into(),
        _ => text.to_owned(),
    }
}

/// The default target of a family, unless that is the proxy itself (`-l 0.0.0.0:443`). Then the family gets no target, and its
/// clients are refused, as they were by the old programs.
fn default_target(
    listen: Option<&OsStr>,
    default: SocketAddr,
    notes: &mut Vec<String>,
) -> Option<String> {
    if !listen.is_some_and(|listen| is_listener(listen, default)) {
        return Some(default.to_string());
    }
    let (family, option) = if default.is_ipv4() {
        ("IPv4", "-4")
    } else {
        ("IPv6", "-6")
    };
    notes.push(format!(
        "{family} clients are refused: {option} is {default} by default, which is this proxy; name their \
         server with {option}"
    ));
    None
}

/// Whether the proxy itself listens on the target.
pub(super) fn is_listener(listen: &OsStr, target: SocketAddr) -> bool {
    let Some(listen) = listen
        .to_str()
        .and_then(|text| text.parse::<SocketAddr>().ok())
    else {
        return false;
    };
    let accepts_family = listen.is_ipv6() || target.is_ipv4();
    let is_same_ip = listen.ip() == target.ip() || (listen.ip().is_unspecified() && accepts_family);
    listen.port() == target.port() && is_same_ip
}

/// Formats whole seconds as a duration, at least 1 s: with 0 a native session would end at once, where the old programs
/// ended sessions some time after they had expired.
fn seconds(count: u64) -> String {
    format!("{}s", count.clamp(1, MAX_SECONDS))
}

/// The default targets of go-mmproxy and mmproxy-rs.
pub(super) const DEFAULT_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 443);
pub(super) const DEFAULT_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 443);
/// The most that `--workers` accepts.
pub(super) const MAX_WORKERS: u32 = 1024;
/// A year, the longest native duration.
const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_target_is_this_host() {
        assert_eq!(target(OsStr::new("0.0.0.0:443")), "127.0.0.1:443");
        assert_eq!(target(OsStr::new("[::]:443")), "[::1]:443");
        assert_eq!(target(OsStr::new("db.example:1")), "db.example:1");
    }
}
