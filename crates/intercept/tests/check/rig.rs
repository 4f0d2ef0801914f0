//! Check services with default settings, requests for them to check, and their metrics.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use peername_intercept::authz::{
    AuthzRequest, BodyPrefix, CheckClient, CheckConfig, CheckService, DecidedBy, RequestKind,
    Service, ServiceUrl, Verdict,
};
use peername_intercept::host::{Host, HostPort};
use prometheus_client::registry::Registry;

/// A check with the defaults, except for a long timeout and what `change` sets. The services have no faults, so only a busy
/// machine makes them slow.
pub(crate) fn check(url: &str, change: impl FnOnce(&mut CheckConfig)) -> CheckService {
    check_with_default_timeout(url, |config| {
        config.timeout = LONG_TIMEOUT;
        change(config);
    })
}

/// A check with the defaults, its timeout included, except for what `change` sets.
pub(crate) fn check_with_default_timeout(
    url: &str,
    change: impl FnOnce(&mut CheckConfig),
) -> CheckService {
    let mut config = CheckConfig::new(vec![service(url)]);
    change(&mut config);
    CheckService::new(config).expect("a configuration")
}

/// A check service that is reached without TLS.
pub(crate) fn service(url: &str) -> Service {
    let url: ServiceUrl = url.parse().expect("a URL");
    url.open(None).expect("a service")
}

/// The client of a [`check`] with the defaults.
pub(crate) fn client(url: &str) -> CheckClient {
    check(url, |_| ()).client()
}

/// The value of a sample (name and labels) in the scraped metrics of a check.
pub(crate) fn metric(check: &CheckService, sample: &str) -> u64 {
    let mut registry = Registry::default();
    check.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encode");
    text.lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))
        .map_or(0, |value| value.parse().expect("a number"))
}

/// A request to check.
pub(crate) struct CheckInput {
    pub(crate) kind: RequestKind,
    pub(crate) client: SocketAddr,
    pub(crate) method: Method,
    pub(crate) scheme: &'static str,
    pub(crate) host: &'static str,
    pub(crate) port: u16,
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    /// The bytes that are sent, and whether the body is truncated.
    pub(crate) body: Option<(Bytes, bool)>,
}

impl Default for CheckInput {
    fn default() -> Self {
        Self {
            kind: RequestKind::Request,
            client: ([192, 0, 2, 7], 50_000).into(),
            method: Method::GET,
            scheme: "https",
            host: "origin.test",
            port: 443,
            path: "/a?b=c",
            headers: HeaderMap::new(),
            body: None,
        }
    }
}

impl CheckInput {
    /// The default request with one change.
    pub(crate) fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut input = Self::default();
        change(&mut input);
        input
    }

    pub(crate) fn header(mut self, name: &'static str, value: &[u8]) -> Self {
        let value = HeaderValue::from_bytes(value).expect("a value");
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    /// Checks this request.
    pub(crate) async fn ask(&self, client: &CheckClient) -> Verdict {
        let body = self.body.clone();
        let body = body.map(|(bytes, truncated)| BodyPrefix { bytes, truncated });
        let to = HostPort {
            host: Host::parse(self.host).expect("a host"),
            port: self.port,
        };
        let request = AuthzRequest {
            kind: self.kind,
            request_id: "id-1",
            client: self.client,
            peer: ([198, 51, 100, 1], 40_000).into(),
            connect: Some(&to),
            sni: Some(self.host),
            alpn: Some("h2"),
            version: Version::HTTP_2,
            method: &self.method,
            scheme: self.scheme,
            to: &to,
            path_and_query: self.path,
            headers: &self.headers,
            traceparent: None,
            body_size: body.as_ref().map(|body| body.bytes.len() as u64),
            body: body.as_ref(),
        };
        client.ask(&request).await
    }
}

/// Checks the default request.
pub(crate) async fn ask(client: &CheckClient) -> Verdict {
    CheckInput::default().ask(client).await
}

/// The code of the failure, if the check failed and denies.
pub(crate) fn failure(verdict: &Verdict) -> Option<&'static str> {
    match &verdict.decided_by {
        DecidedBy::Failure(error) => Some(error.code()),
        _ => None,
    }
}

/// Polls until `poll` returns a value, with a deadline.
pub(crate) fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG_TIMEOUT;
    loop {
        match poll() {
            Some(value) => return value,
            None if Instant::now() > deadline => panic!("{what}: not within {LONG_TIMEOUT:?}"),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Long enough for a busy machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);
