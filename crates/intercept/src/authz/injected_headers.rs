//! Secrets that the proxy adds to requests (`--inject`), so that clients never hold them.
//!
//! A secret is for one host and port, and for one scheme. It is added to a request whose connection is for exactly that: the name
//! on which CONNECT, SNI and Host agree, which the origin's certificate is verified for. A redirection leads the client to
//! another request, which is compared again.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use peername_sys::fs::text_file;

use super::header_mutations::{is_mutable, is_spelling, remove_spellings};
use super::rules::{AccessRules, Subject};
use crate::host::{HostPort, ParseHostError};
use crate::request::target::RequestTarget;

/// Headers with secrets, by destination.
#[derive(Debug, Default)]
pub struct InjectedHeaders {
    headers: Vec<InjectedHeader>,
    /// Files that other users of this host may read.
    exposed: Vec<PathBuf>,
}

/// Which header is added to which requests, and the file with its value: `[http://]HOST[:PORT]=HEADER@FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    destination: Destination,
    name: HeaderName,
    file: PathBuf,
}

/// Requests with this scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Destination {
    /// `https` or `http`.
    tls: bool,
    to: HostPort,
}

/// A header with its value, which is marked as sensitive: `Debug` leaves it out, and HPACK does not index it.
#[derive(Debug)]
struct InjectedHeader {
    destination: Destination,
    name: HeaderName,
    value: HeaderValue,
}

/// Why a text is not an [`Injection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseInjectionError {
    /// Another form.
    #[error("use HOST=HEADER@FILE, such as api.example.com=Authorization@/etc/peername/token")]
    Form,
    /// The host is none.
    #[error(transparent)]
    Host(#[from] ParseHostError),
    /// A name that no header has, or of a header that can't be added.
    #[error(
        "not the name of a header that can be added: not Host, and none of the framing or the connection"
    )]
    Header,
}

/// Why a secret can't be used. Nothing of the file is quoted.
#[derive(Debug, thiserror::Error)]
pub enum InjectionError {
    /// The file can't be read.
    #[error("--inject {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The value is empty, or no value of a header.
    #[error("--inject {}: the file has to be one line, the value of the header", path.display())]
    Value {
        /// The file.
        path: PathBuf,
    },
    /// Two files for one header.
    #[error("--inject {0} is given twice")]
    Twice(Injection),
}

impl InjectedHeaders {
    /// Reads the values.
    pub fn read(injections: &[Injection]) -> Result<Self, InjectionError> {
        let mut all = Self::default();
        for injection in injections {
            let Injection {
                destination,
                name,
                file,
            } = injection;
            let is_given = all
                .headers
                .iter()
                .any(|one| one.destination == *destination && is_spelling(&one.name, name));
            if is_given {
                return Err(InjectionError::Twice(injection.clone()));
            }
            if is_exposed(file) {
                all.exposed.push(file.clone());
            }
            all.headers.push(InjectedHeader {
                destination: destination.clone(),
                name: name.clone(),
                value: read_value(file)?,
            });
        }
        Ok(all)
    }

    /// Files with secrets that other users of this host may read.
    pub fn exposed_files(&self) -> &[PathBuf] {
        &self.exposed
    }

    /// The destinations to which these rules allow no request: the headers for them are never added.
    pub fn denied_by<'a>(&'a self, rules: &'a AccessRules) -> impl Iterator<Item = &'a HostPort> {
        self.headers
            .iter()
            .map(|one| &one.destination.to)
            .filter(|to| rules.decide(to, Subject::OpenedTunnel).is_err())
    }

    /// Adds the headers for this destination, in place of the client's own of these names in each spelling. Returns their names.
    ///
    /// A method that returns the request to the client gets none.
    pub(crate) fn add_to(
        &self,
        headers: &mut HeaderMap,
        method: &Method,
        target: &RequestTarget,
    ) -> Option<String> {
        if self.headers.is_empty() || is_echoed(method) {
            return None;
        }
        let mut names = Vec::new();
        for one in &self.headers {
            if one.destination.tls != target.tls || one.destination.to != target.to {
                continue;
            }
            remove_spellings(headers, &one.name);
            headers.insert(one.name.clone(), one.value.clone());
            names.push(one.name.as_str());
        }
        (!names.is_empty()).then(|| names.join(","))
    }
}

impl Injection {
    /// The file with the value.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl FromStr for Injection {
    type Err = ParseInjectionError;

    fn from_str(text: &str) -> Result<Self, ParseInjectionError> {
        let (host, rest) = text.split_once('=').ok_or(ParseInjectionError::Form)?;
        let (name, file) = rest.split_once('@').ok_or(ParseInjectionError::Form)?;
        if file.is_empty() {
            return Err(ParseInjectionError::Form);
        }
        let (tls, host) = match (host.strip_prefix("http://"), host.strip_prefix("https://")) {
            (Some(host), _) => (false, host),
            (None, Some(host)) => (true, host),
            (None, None) => (true, host),
        };
        let to = HostPort::parse_or(host, if tls { 443 } else { 80 })?;
        let name = name.parse().ok().filter(is_mutable);
        Ok(Self {
            destination: Destination { tls, to },
            name: name.ok_or(ParseInjectionError::Header)?,
            file: file.into(),
        })
    }
}

impl Display for Injection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Destination { tls, to } = &self.destination;
        let scheme = if *tls { "https" } else { "http" };
        write!(f, "{scheme}://{to}={}", self.name)
    }
}

/// Whether an origin may answer with the request as it came: to a TRACE (RFC 9110, section 9.3.8), IIS to a TRACK. Methods have a case,
/// but some servers ignore it.
fn is_echoed(method: &Method) -> bool {
    ["TRACE", "TRACK"]
        .iter()
        .any(|echoed| method.as_str().eq_ignore_ascii_case(echoed))
}

fn read_value(path: &Path) -> Result<HeaderValue, InjectionError> {
    let text = text_file::read(path).map_err(|source| InjectionError::File {
        path: path.to_owned(),
        source,
    })?;
    let line = text.trim_end_matches(['\r', '\n']);
    let value = HeaderValue::from_str(line).ok();
    let value = value.filter(|value| !value.as_bytes().trim_ascii().is_empty());
    let mut value = value.ok_or_else(|| InjectionError::Value {
        path: path.to_owned(),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether group or others may read the file.
fn is_exposed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.mode() & 0o044 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_header_are_refused() {
        let given = [
            "a.test=X-Key@/proc/self/comm",
            "a.test=X_Key@/proc/self/comm",
        ];
        let given = given.map(|text| text.parse::<Injection>().unwrap());
        let read = InjectedHeaders::read(&given);
        assert!(matches!(read, Err(InjectionError::Twice(_))), "{read:?}");
    }

    #[test]
    fn a_destination_has_one_scheme_host_and_port() {
        for (text, shown) in [
            ("A.test.=X-Key@/f", "https://a.test:443=x-key"),
            ("https://a.test=X-Key@/f", "https://a.test:443=x-key"),
            (
                "a.test:8443=authorization@f@g",
                "https://a.test:8443=authorization",
            ),
            ("http://a.test=X-Key@/f", "http://a.test:80=x-key"),
            ("[2001:db8::1]:1=x-key@f", "https://[2001:db8::1]:1=x-key"),
        ] {
            assert_eq!(text.parse::<Injection>().unwrap().to_string(), shown);
        }
        let host = |why| Err(ParseInjectionError::Host(why));
        for (text, error) in [
            ("a.test", Err(ParseInjectionError::Form)),
            ("a.test=x-key", Err(ParseInjectionError::Form)),
            ("a.test=x-key@", Err(ParseInjectionError::Form)),
            ("a.test=host@f", Err(ParseInjectionError::Header)),
            ("a.test=content-length@f", Err(ParseInjectionError::Header)),
            ("a.test=a b@f", Err(ParseInjectionError::Header)),
            ("*.a.test=x-key@f", host(ParseHostError::Character)),
            ("=x-key@f", host(ParseHostError::Empty)),
        ] {
            assert_eq!(text.parse::<Injection>(), error, "{text}");
        }
    }
}
