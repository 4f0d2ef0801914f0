//! Questions, and what came of them.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use peername_intercept::authz::{
    Authority, Check, CheckConfig, Client, Kind, Prefix, Question, Verdict,
};
use prometheus_client::registry::Registry;

/// A check with the defaults, changed by `change`. It has patience: these services are sound, and the machine may
/// be busy.
pub(crate) fn check(url: &str, change: impl FnOnce(&mut CheckConfig)) -> Check {
    hasty(url, |config| {
        config.timeout = SOON;
        change(config);
    })
}

/// The same with the default timeout.
pub(crate) fn hasty(url: &str, change: impl FnOnce(&mut CheckConfig)) -> Check {
    let mut config = CheckConfig::new(url.parse().expect("a URL"));
    change(&mut config);
    Check::new(config).expect("a configuration")
}

/// Its client, when there is one worker.
pub(crate) fn client(url: &str) -> Client {
    check(url, |_| ()).client()
}

/// What a check counts under a name and labels, as the text says that is scraped.
pub(crate) fn counted(check: &Check, sample: &str) -> u64 {
    let mut registry = Registry::default();
    check.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encode");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a number"))
}

/// A request, to be asked about.
pub(crate) struct Asking {
    pub(crate) kind: Kind,
    pub(crate) client: SocketAddr,
    pub(crate) method: Method,
    pub(crate) scheme: &'static str,
    pub(crate) host: &'static str,
    pub(crate) port: u16,
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<(Bytes, bool)>,
}

impl Default for Asking {
    fn default() -> Self {
        Self {
            kind: Kind::Request,
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

impl Asking {
    pub(crate) fn header(mut self, name: &'static str, value: &[u8]) -> Self {
        let value = HeaderValue::from_bytes(value).expect("a value");
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    pub(crate) async fn of(&self, client: &Client) -> Verdict {
        let body = self.body.as_ref();
        let question = Question {
            kind: self.kind,
            request_id: "id-1",
            client: self.client,
            peer: ([198, 51, 100, 1], 40_000).into(),
            connect: Some(Authority {
                host: self.host,
                port: self.port,
            }),
            sni: Some(self.host),
            alpn: Some("h2"),
            version: Version::HTTP_2,
            method: &self.method,
            scheme: self.scheme,
            to: Authority {
                host: self.host,
                port: self.port,
            },
            path_and_query: self.path,
            headers: &self.headers,
            body_size: body.map(|(bytes, _)| bytes.len() as u64),
            body: body.map(|(bytes, truncated)| Prefix {
                bytes,
                truncated: *truncated,
            }),
        };
        client.ask(&question).await
    }
}

/// Asks about any request.
pub(crate) async fn ask(client: &Client) -> Verdict {
    Asking::default().of(client).await
}

/// Waits for what should happen, not for time to pass.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + SOON;
    loop {
        match look() {
            Some(seen) => return seen,
            None if Instant::now() > give_up => panic!("{what}: not within {SOON:?}"),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);
