//! The URL of a check service. Its scheme selects the protocol.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use http::uri::{Authority, Scheme};

use super::error::ConfigError;
use crate::authz::protocol::Protocol;
use crate::authz::protocol::ext_authz::EXT_AUTHZ;
use crate::authz::protocol::forward_auth::FORWARD_AUTH;
use crate::authz::protocol::opa::OPA;
use crate::authz::protocol::rego::{Policy, PolicyPath};
use crate::http_client::connector::{Endpoint, ServerSocket};
use crate::http_client::tls::ClientTls;

/// The protocols of services in other processes. A new protocol is its file and an entry here.
static PROTOCOLS: [&Protocol; 3] = [&EXT_AUTHZ, &FORWARD_AUTH, &OPA];

/// The argument of `--check`: the URL of a check service, or the path of a policy.
#[derive(Clone, Debug)]
pub struct ServiceUrl {
    text: Arc<str>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Remote(Remote),
    Policy(PolicyPath),
}

/// A check service in another process.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) protocol: &'static Protocol,
    pub(crate) endpoint: Endpoint,
}

/// A check service that is ready to be asked.
#[derive(Clone, Debug)]
pub struct Service {
    text: Arc<str>,
    pub(crate) backend: Backend,
}

/// The backend of a check service.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    /// Another process.
    Remote(Remote),
    /// A policy that is evaluated in this process.
    Policy(Arc<Policy>),
}

impl ServiceUrl {
    /// Whether the connection is secured by TLS.
    pub fn uses_tls(&self) -> bool {
        matches!(&self.kind, Kind::Remote(remote) if remote.endpoint.is_https())
    }

    /// The file or directory of a policy that is evaluated in this process.
    pub fn policy(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Policy(policy) => Some(policy.path()),
            Kind::Remote(_) => None,
        }
    }

    /// Creates the service. A policy is read and compiled; a service in another process is not connected yet, and gets `tls` if
    /// it uses TLS.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Policy`] for an invalid policy, [`ConfigError::NoTrustAnchors`] if `tls` is missing.
    pub fn open(&self, tls: Option<&ClientTls>) -> Result<Service, ConfigError> {
        let backend = match &self.kind {
            Kind::Remote(remote) => {
                let mut remote = remote.clone();
                if self.uses_tls() {
                    remote.endpoint.tls = Some(tls.ok_or(ConfigError::NoTrustAnchors)?.clone());
                }
                Backend::Remote(remote)
            }
            Kind::Policy(path) => Backend::Policy(Arc::new(Policy::read(path)?)),
        };
        Ok(Service {
            text: Arc::clone(&self.text),
            backend,
        })
    }
}

impl FromStr for ServiceUrl {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let not_a_url = || ConfigError::NotAUrl {
            forms: check_forms(),
        };
        let (scheme, rest) = text.split_once(':').ok_or_else(not_a_url)?;
        let kind = match scheme {
            "rego" => Kind::Policy(rest.parse()?),
            scheme => match find_protocol(scheme) {
                Some((protocol, scheme)) => {
                    let address = rest.strip_prefix("//").unwrap_or(rest);
                    Kind::Remote(match address.strip_prefix("unix:") {
                        Some(socket) => Remote::on_socket(protocol, scheme, socket),
                        None => Remote::on_tcp(protocol, scheme, rest, not_a_url),
                    }?)
                }
                None if rest.starts_with("//") => {
                    return Err(ConfigError::Scheme {
                        scheme: scheme.to_owned(),
                        forms: check_forms(),
                    });
                }
                None => return Err(not_a_url()),
            },
        };
        let text = text.into();
        Ok(Self { text, kind })
    }
}

impl Remote {
    fn on_tcp(
        protocol: &'static Protocol,
        scheme: Scheme,
        rest: &str,
        not_a_url: impl Fn() -> ConfigError,
    ) -> Result<Self, ConfigError> {
        let url = format!("{scheme}:{rest}");
        let uri: Uri = url.parse().map_err(|_| not_a_url())?;
        let authority = uri.authority().ok_or_else(not_a_url)?;
        if authority.as_str().contains('@') {
            return Err(ConfigError::UserInfo);
        }
        let has_port = authority.port_u16().is_some_and(|port| port != 0);
        if protocol.needs_port && !has_port {
            return Err(ConfigError::Port(protocol.url_form));
        }
        (protocol.check_url)(&uri)?;
        Ok(Self {
            protocol,
            endpoint: Endpoint {
                uri,
                socket: None,
                tls: None,
            },
        })
    }

    /// Parses `SOCKET` or `SOCKET:/PATH`, the syntax of nginx.
    fn on_socket(
        protocol: &'static Protocol,
        scheme: Scheme,
        text: &str,
    ) -> Result<Self, ConfigError> {
        let (socket, path) = text.split_once(':').unwrap_or((text, "/"));
        if socket.is_empty() {
            return Err(ConfigError::Url(
                "name the Unix socket: unix:/run/check.sock",
            ));
        }
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(Authority::from_static("localhost"))
            .path_and_query(path)
            .build()
            .map_err(|_| ConfigError::Url("a path follows the Unix socket: unix:SOCKET:/PATH"))?;
        (protocol.check_url)(&uri)?;
        Ok(Self {
            protocol,
            endpoint: Endpoint {
                uri,
                socket: Some(ServerSocket::new(socket)),
                tls: None,
            },
        })
    }
}

impl Service {
    /// Whether it is a policy that is evaluated in this process.
    pub fn is_policy(&self) -> bool {
        matches!(self.backend, Backend::Policy(_))
    }

    /// Pins the service's Unix socket where this process's user could replace it, unless TLS shows which service it is.
    pub(super) fn pin_socket(&mut self) -> Result<(), ConfigError> {
        let Backend::Remote(Remote { endpoint, .. }) = &mut self.backend else {
            return Ok(());
        };
        if endpoint.is_https() {
            return Ok(());
        }
        let Some(socket) = &mut endpoint.socket else {
            return Ok(());
        };
        socket
            .pin_if_replaceable()
            .map_err(|error| ConfigError::Socket {
                path: socket.path().to_owned(),
                error: error.to_string(),
            })
    }
}

fn find_protocol(scheme: &str) -> Option<(&'static Protocol, Scheme)> {
    PROTOCOLS.into_iter().find_map(|protocol| {
        if scheme == protocol.scheme {
            Some((protocol, Scheme::HTTP))
        } else if scheme == protocol.tls_scheme {
            Some((protocol, Scheme::HTTPS))
        } else {
            None
        }
    })
}

impl PartialEq for ServiceUrl {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Whether checks would be answered by the same service in the same way.
impl PartialEq for Service {
    fn eq(&self, other: &Self) -> bool {
        let is_same_backend = match (&self.backend, &other.backend) {
            (Backend::Remote(remote), Backend::Remote(other)) => {
                remote.endpoint.tls == other.endpoint.tls
            }
            (Backend::Policy(policy), Backend::Policy(other)) => policy == other,
            _ => false,
        };
        self.text == other.text && is_same_backend
    }
}

impl Display for Service {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The URLs of `--check` without TLS, with their protocols, for help texts.
pub fn check_url_forms() -> String {
    PROTOCOLS
        .map(|protocol| format!("{} ({})", protocol.url_form, protocol.name))
        .join(", ")
}

/// All forms of `--check`, with their protocols, for error texts.
fn check_forms() -> String {
    format!(
        "{}, each with TLS ({}) or on a Unix socket (unix:SOCKET: for //HOST:PORT), or rego:FILE (a policy in Rego)",
        check_url_forms(),
        check_schemes_with_tls()
    )
}

/// The schemes of `--check` that use TLS, for error texts.
pub fn check_schemes_with_tls() -> String {
    PROTOCOLS.map(|protocol| protocol.tls_scheme).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_selects_protocol_and_transport() {
        for (url, form, uri, socket) in [
            (
                "grpc://127.0.0.1:9001",
                "grpc:",
                "http://127.0.0.1:9001/",
                None,
            ),
            ("grpcs://a.test:9001", "grpc:", "https://a.test:9001/", None),
            (
                "http://a.test/verify?x=1",
                "http:",
                "http://a.test/verify?x=1",
                None,
            ),
            (
                "https://a.test/verify",
                "http:",
                "https://a.test/verify",
                None,
            ),
            (
                "opa+https://[::1]:8181/v1/data/egress",
                "opa+http:",
                "https://[::1]:8181/v1/data/egress",
                None,
            ),
            (
                "grpc:unix:/run/x",
                "grpc:",
                "http://localhost/",
                Some("/run/x"),
            ),
            (
                "grpcs://unix:/run/x",
                "grpc:",
                "https://localhost/",
                Some("/run/x"),
            ),
            (
                "http://unix:/run/x:/v?w",
                "http:",
                "http://localhost/v?w",
                Some("/run/x"),
            ),
            (
                "opa+http:unix:/run/x:/v1/data/a",
                "opa+http:",
                "http://localhost/v1/data/a",
                Some("/run/x"),
            ),
        ] {
            let service: ServiceUrl = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
            let Kind::Remote(remote) = &service.kind else {
                panic!("{url}");
            };
            assert!(remote.protocol.url_form.starts_with(form), "{url}");
            assert_eq!(remote.endpoint.uri, uri.parse::<Uri>().unwrap(), "{url}");
            assert_eq!(
                remote.endpoint.socket.as_ref().map(ServerSocket::path),
                socket.map(Path::new),
                "{url}"
            );
            assert_eq!(service.uses_tls(), uri.starts_with("https"), "{url}");
        }
    }

    #[test]
    fn urls_that_no_protocol_accepts_are_refused() {
        let not_a_url = || ConfigError::NotAUrl {
            forms: check_forms(),
        };
        for (text, error) in [
            ("", not_a_url()),
            ("127.0.0.1:9001", not_a_url()),
            ("grpc:auth.test:9001", not_a_url()),
            (
                "ftp://auth.test/",
                ConfigError::Scheme {
                    scheme: "ftp".into(),
                    forms: check_forms(),
                },
            ),
            ("grpc://auth.test", ConfigError::Port("grpc://HOST:PORT")),
            (
                "grpc://auth.test:1/Check",
                ConfigError::Url("a grpc check URL has no path; write grpc://HOST:PORT"),
            ),
            (
                "grpc:unix:/run/x:/Check",
                ConfigError::Url("a grpc check URL has no path; write grpc://HOST:PORT"),
            ),
            ("http://me:secret@auth.test/", ConfigError::UserInfo),
            (
                "http:unix:",
                ConfigError::Url("name the Unix socket: unix:/run/check.sock"),
            ),
            (
                "http://auth.test:8181/v1/data/egress",
                ConfigError::Url(
                    "the check URL's path is one of OPA's; write opa+http://HOST:PORT/v1/data/PATH",
                ),
            ),
            (
                "opa+http://auth.test:8181/v1/query",
                ConfigError::Url(
                    "an OPA check URL's path begins with /v1/data/ and names a rule or package",
                ),
            ),
            (
                "opa+https:unix:/run/x",
                ConfigError::Url(
                    "an OPA check URL's path begins with /v1/data/ and names a rule or package",
                ),
            ),
        ] {
            assert_eq!(text.parse::<ServiceUrl>(), Err(error), "{text}");
        }
    }

    #[test]
    fn all_forms_are_named() {
        let forms = "grpc://HOST:PORT (Envoy's ext_authz), http://HOST[:PORT]/PATH (forwardAuth), \
                     opa+http://HOST:PORT/v1/data/PATH (OPA's data API), each with TLS (grpcs, https, opa+https) or on a Unix \
                     socket (unix:SOCKET: for //HOST:PORT), or rego:FILE (a policy in Rego)";
        assert_eq!(check_forms(), forms);
    }
}
