//! Which service is asked, about what, and for how long.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::header::{self, HeaderName};

use super::header_mutations::is_free;

/// A check service, and how it is asked.
#[derive(Clone, Debug)]
pub struct CheckConfig {
    /// Which.
    pub service: Service,
    /// From the question to the end of the answer, whatever happens between.
    pub timeout: Duration,
    /// When there is no answer.
    pub on_failure: OnFailure,
    /// How long an answer stands for questions like it; `None` asks each time.
    pub cache: Option<Duration>,
    /// Questions that are open at once, of all workers together. Others wait, within their time.
    pub concurrency: NonZeroUsize,
    /// Which of the request's headers the service sees.
    pub sent: Sent,
    /// Octets of the request's body that the service sees; 0 for none.
    pub body: usize,
    /// Headers of a forwardAuth service's yes that the request takes on (and loses, if they are not there).
    pub take: Vec<HeaderName>,
}

impl CheckConfig {
    /// The defaults: 500 ms, deny on failure, no cache, 256 at once, no body, and no credentials.
    pub fn new(service: Service) -> Self {
        Self {
            service,
            timeout: Duration::from_millis(500),
            on_failure: OnFailure::Deny,
            cache: None,
            concurrency: NonZeroUsize::new(256).expect("not zero"),
            sent: Sent::default(),
            body: 0,
            take: Vec::new(),
        }
    }

    /// # Errors
    ///
    /// What would be accepted and then do nothing.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        match &self.service {
            _ if self.timeout.is_zero() => Err(ConfigError::NoTime),
            Service::ForwardAuth(_) if self.body > 0 => Err(ConfigError::Body),
            Service::Grpc(_) | Service::Opa(_) if !self.take.is_empty() => Err(ConfigError::Take),
            _ => match self.take.iter().find(|name| !is_free(name)) {
                Some(kept) => Err(ConfigError::Kept(kept.clone())),
                None => Ok(()),
            },
        }
    }
}

/// What happens to a request when nobody decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is denied.
    #[default]
    Deny,
    /// It goes on, unseen.
    Allow,
}

/// Which headers of the request are sent to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sent {
    /// All but Authorization, Proxy-Authorization and Cookie: they are the origin's secrets (and ours), and the
    /// service is neither.
    #[default]
    AllButCredentials,
    /// All.
    All,
    /// These.
    Only(Vec<HeaderName>),
}

impl Sent {
    /// Whether this one is.
    pub(crate) fn includes(&self, name: &HeaderName) -> bool {
        match self {
            Self::AllButCredentials => !CREDENTIALS.contains(name),
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

const CREDENTIALS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
];

/// Where the service is and what it speaks. From `--check URL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// `grpc://host:port`: Envoy's `envoy.service.auth.v3.Authorization/Check`, HTTP/2 without TLS.
    Grpc(Uri),
    /// `http://host[:port][/path]`: forwardAuth, as Traefik asks.
    ForwardAuth(Uri),
    /// `opa+http://host:port/v1/data/…`: OPA's data API.
    Opa(Uri),
}

impl Service {
    /// What requests to it are addressed to, with the scheme `http`.
    pub fn uri(&self) -> &Uri {
        match self {
            Self::Grpc(uri) | Self::ForwardAuth(uri) | Self::Opa(uri) => uri,
        }
    }
}

/// Why a check can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a URL.
    #[error(
        "{0:?} is not a URL; write grpc://HOST:PORT, http://HOST:PORT/PATH or opa+http://HOST:PORT/v1/data/PATH"
    )]
    NotAUrl(String),
    /// A URL of another scheme.
    #[error(
        "a check service of the scheme {0:?} is not known; there are grpc, http (forwardAuth) and opa+http"
    )]
    Scheme(String),
    /// A URL that says who we are.
    #[error("a check URL can't carry a user name or password")]
    UserInfo,
    /// gRPC and OPA have no port of their own.
    #[error("the check URL {0:?} has no port")]
    Port(String),
    /// A gRPC service is asked by its method's name.
    #[error("a grpc check URL has no path; write grpc://HOST:PORT")]
    Path,
    /// OPA's other APIs answer otherwise.
    #[error("an OPA check URL's path begins with /v1/data/ and names a rule or package")]
    DataApi,
    /// A forwardAuth service at OPA's path.
    #[error("the check URL's path is one of OPA's; write opa+http://HOST:PORT/v1/data/PATH")]
    Opa,
    /// A GET has none.
    #[error(
        "a forwardAuth service is not sent bodies; ask over grpc or opa+http, or leave the body out"
    )]
    Body,
    /// Others name the headers they want changed.
    #[error(
        "headers to take from the answer are for forwardAuth; grpc and opa+http services name them in the answer"
    )]
    Take,
    /// A header that no answer changes.
    #[error(
        "the header {0} can't be taken from the answer: where a request goes, how long it is and what belongs to the connection \
         stays as it was checked"
    )]
    Kept(HeaderName),
    /// Nothing would ever be allowed.
    #[error("the check timeout is zero")]
    NoTime,
}

impl FromStr for Service {
    type Err = ConfigError;

    fn from_str(written: &str) -> Result<Self, ConfigError> {
        let not_a_url = || ConfigError::NotAUrl(written.to_owned());
        let url: Uri = written.parse().map_err(|_| not_a_url())?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(not_a_url());
        };
        if authority.as_str().contains('@') {
            return Err(ConfigError::UserInfo);
        }
        let mut parts = url.clone().into_parts();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        let plain = Uri::from_parts(parts).map_err(|_| not_a_url())?;
        let has_port = authority.port_u16().is_some_and(|port| port != 0);
        match scheme {
            "grpc" | "opa+http" if !has_port => Err(ConfigError::Port(written.to_owned())),
            "grpc" if url.path_and_query().is_some_and(|path| path != "/") => {
                Err(ConfigError::Path)
            }
            "grpc" => Ok(Self::Grpc(plain)),
            // It would answer every question with 200, which is a yes here.
            "http" if url.path().starts_with(DATA_API) => Err(ConfigError::Opa),
            "http" => Ok(Self::ForwardAuth(plain)),
            "opa+http" => match url.path().strip_prefix(DATA_API) {
                Some(rule) if !rule.is_empty() => Ok(Self::Opa(plain)),
                _ => Err(ConfigError::DataApi),
            },
            other => Err(ConfigError::Scheme(other.to_owned())),
        }
    }
}

const DATA_API: &str = "/v1/data/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_says_what_is_spoken() {
        let grpc: Service = "grpc://127.0.0.1:9001".parse().unwrap();
        assert!(matches!(&grpc, Service::Grpc(uri) if *uri == "http://127.0.0.1:9001/"));
        let forward: Service = "http://auth.test/verify?x=1".parse().unwrap();
        assert!(
            matches!(&forward, Service::ForwardAuth(uri) if *uri == "http://auth.test/verify?x=1")
        );
        let opa: Service = "opa+http://[::1]:8181/v1/data/egress".parse().unwrap();
        assert!(matches!(&opa, Service::Opa(uri) if *uri == "http://[::1]:8181/v1/data/egress"));
    }

    #[test]
    fn what_can_not_be_asked_is_refused() {
        for (written, error) in [
            ("", ConfigError::NotAUrl(String::new())),
            (
                "127.0.0.1:9001",
                ConfigError::NotAUrl("127.0.0.1:9001".into()),
            ),
            ("https://auth.test/", ConfigError::Scheme("https".into())),
            (
                "grpc://auth.test",
                ConfigError::Port("grpc://auth.test".into()),
            ),
            ("grpc://auth.test:1/Check", ConfigError::Path),
            ("http://me:secret@auth.test/", ConfigError::UserInfo),
            ("http://auth.test:8181/v1/data/egress", ConfigError::Opa),
            ("opa+http://auth.test:8181/v1/query", ConfigError::DataApi),
            ("opa+http://auth.test:8181/v1/data/", ConfigError::DataApi),
        ] {
            assert_eq!(written.parse::<Service>(), Err(error), "{written}");
        }
    }

    #[test]
    fn only_what_a_request_may_take_on_can_be_named() {
        let taking = |name: &'static str| CheckConfig {
            take: vec![header::AUTHORIZATION, HeaderName::from_static(name)],
            ..CheckConfig::new("http://auth.test/verify".parse().unwrap())
        };
        for name in [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "upgrade",
            "expect",
            "proxy-authorization",
        ] {
            let kept = ConfigError::Kept(HeaderName::from_static(name));
            assert_eq!(taking(name).validate(), Err(kept));
        }
        assert_eq!(taking("x-user").validate(), Ok(()));
    }

    #[test]
    fn credentials_are_sent_when_they_are_asked_for() {
        assert!(!Sent::AllButCredentials.includes(&header::COOKIE));
        assert!(Sent::AllButCredentials.includes(&header::ACCEPT));
        assert!(Sent::All.includes(&header::COOKIE));
        let only = Sent::Only(vec![header::COOKIE]);
        assert!(only.includes(&header::COOKIE) && !only.includes(&header::ACCEPT));
    }
}
