//! Secrets that the proxy adds to requests (`--inject`), so that clients never hold them.
//!
//! A secret is for one scheme, host and port, and is added to requests for exactly these. CONNECT, SNI and Host agree on the
//! host of such a request, and the origin's certificate is verified for it. When the client follows a redirection, its new
//! request is compared again.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use peername_sys::fs::text_file;

use super::header_mutations::{is_cgi_alias, is_mutable, remove_cgi_aliases};
use super::rules::{AccessRules, DeniedBy, Subject};
use crate::host::{HostPort, ParseHostError};
use crate::policy::passthrough::Passthrough;
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
    /// Whether the scheme is `https`, not `http`.
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
    /// Not `HOST=HEADER@FILE`.
    #[error("use HOST=HEADER@FILE, such as api.example.com=Authorization@/etc/peername/token")]
    Form,
    /// The host is a pattern.
    #[error("a secret is for one host: name it in full, and repeat the option for others")]
    Pattern,
    /// The host or its port is not valid.
    #[error(transparent)]
    Host(#[from] ParseHostError),
    /// Not a header name, or one of a header that can't be added.
    #[error(
        "not the name of a header that can be added (not Host, and none of the framing or the connection); write it without a colon \
         or a space: api.example.com=Authorization@FILE"
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
    /// The file is empty, or not a valid header value.
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
        let mut read = Self::default();
        for injection in injections {
            let Injection {
                destination,
                name,
                file,
            } = injection;
            let is_duplicate = read.headers.iter().any(|header| {
                header.destination == *destination && is_cgi_alias(&header.name, name)
            });
            if is_duplicate {
                return Err(InjectionError::Twice(injection.clone()));
            }
            if is_exposed(file) {
                read.exposed.push(file.clone());
            }
            read.headers.push(InjectedHeader {
                destination: destination.clone(),
                name: name.clone(),
                value: read_value(file)?,
            });
        }
        Ok(read)
    }

    /// Files with secrets that other users of this host may read.
    pub fn exposed_files(&self) -> &[PathBuf] {
        &self.exposed
    }

    /// The destinations of all headers.
    pub fn destinations(&self) -> impl Iterator<Item = &HostPort> {
        self.headers.iter().map(|header| &header.destination.to)
    }

    /// The destinations of headers that are never added, because these rules allow no request to them. With an approver, which
    /// may allow what no rule matches: because a rule denies them.
    pub fn denied_by<'a>(
        &'a self,
        rules: &'a AccessRules,
        has_approver: bool,
    ) -> impl Iterator<Item = &'a HostPort> {
        self.destinations()
            .filter(move |to| match rules.decide(to, Subject::OpenedTunnel) {
                Ok(_) => false,
                Err(DeniedBy::Rule(_)) => true,
                Err(_) => !has_approver,
            })
    }

    /// The destinations of headers that are never added, because their TLS is passed through unopened.
    pub fn passed_through<'a>(
        &'a self,
        passthrough: &'a Passthrough,
    ) -> impl Iterator<Item = &'a HostPort> {
        self.headers
            .iter()
            .map(|header| &header.destination)
            .filter(|destination| destination.tls && passthrough.includes(&destination.to.host))
            .map(|destination| &destination.to)
    }

    /// Adds the headers for this destination, and removes the client's own of the same names. Returns the names that were added.
    ///
    /// Adds none if the response to a request of this method may contain the request.
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
        for InjectedHeader {
            destination,
            name,
            value,
        } in &self.headers
        {
            if destination.tls == target.is_tls && destination.to == target.to {
                remove_cgi_aliases(headers, name);
                headers.insert(name.clone(), value.clone());
                names.push(name.as_str());
            }
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
        if host.starts_with('.') || host.contains('*') {
            return Err(ParseInjectionError::Pattern);
        }
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

/// Whether the response to this method may contain the request: that to TRACE (RFC 9110, section 9.3.8), and to TRACK of IIS.
/// Methods are case-sensitive, but some servers ignore case.
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
    let mut value = HeaderValue::from_str(line)
        .ok()
        .filter(|value| !value.as_bytes().trim_ascii().is_empty())
        .ok_or_else(|| InjectionError::Value {
            path: path.to_owned(),
        })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether group or others may read the file.
fn is_exposed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o044 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_injections_of_one_cgi_variable_are_refused() {
        let injections = [
            "a.test=X-Key@/proc/self/comm",
            "a.test=X_Key@/proc/self/comm",
        ]
        .map(|text| text.parse::<Injection>().unwrap());
        let read = InjectedHeaders::read(&injections);
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
    }

    #[test]
    fn text_that_is_no_injection_is_refused() {
        for (text, error) in [
            ("a.test", ParseInjectionError::Form),
            ("a.test=x-key", ParseInjectionError::Form),
            ("a.test=x-key@", ParseInjectionError::Form),
            ("*.a.test=x-key@f", ParseInjectionError::Pattern),
            (".a.test=x-key@f", ParseInjectionError::Pattern),
            ("a.test=host@f", ParseInjectionError::Header),
            ("a.test=content-length@f", ParseInjectionError::Header),
            ("a.test=a b@f", ParseInjectionError::Header),
            ("=x-key@f", ParseHostError::Empty.into()),
        ] {
            assert_eq!(text.parse::<Injection>(), Err(error), "{text}");
        }
    }
}
