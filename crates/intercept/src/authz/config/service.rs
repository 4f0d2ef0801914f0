//! The check service's URL. Its scheme selects the protocol.

use std::str::FromStr;

use http::Uri;

use super::error::ConfigError;
use crate::authz::protocol::Protocol;
use crate::authz::protocol::ext_authz::ExtAuthz;
use crate::authz::protocol::forward_auth::ForwardAuth;
use crate::authz::protocol::opa::Opa;

/// The protocols by URL scheme. A new protocol is its file and a line here.
const PROTOCOLS: [(&str, &dyn Protocol); 3] = [
    ("grpc", &ExtAuthz),
    ("http", &ForwardAuth),
    ("opa+http", &Opa),
];

/// A check service (`--check URL`): where it is, and its protocol.
#[derive(Clone, Debug)]
pub struct Service {
    scheme: &'static str,
    protocol: &'static dyn Protocol,
    uri: Uri,
}

impl PartialEq for Service {
    fn eq(&self, other: &Self) -> bool {
        (self.scheme, &self.uri) == (other.scheme, &other.uri)
    }
}

impl Service {
    /// The URI of requests to the service, with the scheme `http`.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn protocol(&self) -> &'static dyn Protocol {
        self.protocol
    }
}

impl FromStr for Service {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let not_a_url = || ConfigError::NotAUrl {
            url: text.to_owned(),
            forms: url_forms(),
        };
        let url: Uri = text.parse().map_err(|_| not_a_url())?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(not_a_url());
        };
        if authority.as_str().contains('@') {
            return Err(ConfigError::UserInfo);
        }
        let mut parts = url.clone().into_parts();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        let uri = Uri::from_parts(parts).map_err(|_| not_a_url())?;
        let mut protocols = PROTOCOLS.into_iter();
        let Some((scheme, protocol)) = protocols.find(|(known, _)| *known == scheme) else {
            return Err(ConfigError::Scheme {
                scheme: scheme.to_owned(),
                forms: url_forms(),
            });
        };
        let has_port = authority.port_u16().is_some_and(|port| port != 0);
        if protocol.needs_port() && !has_port {
            return Err(ConfigError::Port(text.to_owned()));
        }
        protocol.check_url(&url)?;
        Ok(Self {
            scheme,
            protocol,
            uri,
        })
    }
}

/// The URL forms of all protocols, as an enumeration.
fn url_forms() -> String {
    let forms = PROTOCOLS.map(|(_, protocol)| protocol.url_form());
    match forms.as_slice() {
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_selects_the_protocol() {
        for (url, scheme, uri) in [
            ("grpc://127.0.0.1:9001", "grpc", "http://127.0.0.1:9001/"),
            (
                "http://auth.test/verify?x=1",
                "http",
                "http://auth.test/verify?x=1",
            ),
            (
                "opa+http://[::1]:8181/v1/data/egress",
                "opa+http",
                "http://[::1]:8181/v1/data/egress",
            ),
        ] {
            let service: Service = url.parse().unwrap();
            assert_eq!(
                (service.scheme, service.uri()),
                (scheme, &uri.parse().unwrap())
            );
        }
    }

    #[test]
    fn urls_that_no_protocol_accepts_are_refused() {
        let not_a_url = |url: &str| ConfigError::NotAUrl {
            url: url.to_owned(),
            forms: url_forms(),
        };
        for (text, error) in [
            ("", not_a_url("")),
            ("127.0.0.1:9001", not_a_url("127.0.0.1:9001")),
            (
                "https://auth.test/",
                ConfigError::Scheme {
                    scheme: "https".into(),
                    forms: url_forms(),
                },
            ),
            (
                "grpc://auth.test",
                ConfigError::Port("grpc://auth.test".into()),
            ),
            (
                "grpc://auth.test:1/Check",
                ConfigError::Url("a grpc check URL has no path; write grpc://HOST:PORT"),
            ),
            ("http://me:secret@auth.test/", ConfigError::UserInfo),
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
                "opa+http://auth.test:8181/v1/data/",
                ConfigError::Url(
                    "an OPA check URL's path begins with /v1/data/ and names a rule or package",
                ),
            ),
        ] {
            assert_eq!(text.parse::<Service>(), Err(error), "{text}");
        }
    }

    #[test]
    fn the_error_names_all_forms() {
        let forms = "grpc://HOST:PORT, http://HOST:PORT/PATH or opa+http://HOST:PORT/v1/data/PATH";
        assert_eq!(url_forms(), forms);
    }
}
