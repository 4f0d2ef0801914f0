//! An OpenTelemetry Collector, which prints the spans that it receives.

use std::net::SocketAddr;

use serde_json::{Map, Value};

use crate::harness::check::service::tool;
use crate::harness::lab::{Host, Process, Scratch, wait_for};

/// A running collector.
pub(crate) struct Collector(Process);

impl Collector {
    /// Starts one with a receiver of OTLP over HTTP.
    pub(crate) fn start(host: &Host, scratch: &Scratch, address: SocketAddr) -> Self {
        Self::start_with(host, scratch, address, "")
    }

    /// The same with TLS, with these files of certificate and key.
    pub(crate) fn start_with_tls(
        host: &Host,
        scratch: &Scratch,
        address: SocketAddr,
        [certificate, key]: [&str; 2],
    ) -> Self {
        let tls = format!(r#", tls: {{cert_file: "{certificate}", key_file: "{key}"}}"#);
        Self::start_with(host, scratch, address, &tls)
    }

    fn start_with(host: &Host, scratch: &Scratch, address: SocketAddr, tls: &str) -> Self {
        let config = CONFIG.replace("ADDRESS", &address.to_string());
        let config = scratch.write("collector.yaml", &config.replace("TLS", tls));
        let program = tool("collector");
        let program = program.to_str().expect("UTF-8");
        Self(Process::start(host, program, &["--config", &config]).wait_listening(&[address]))
    }

    /// The spans so far, each with its attributes, and those of its resource, as an object.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let log = self.0.log();
        let lines = log.lines().filter(|line| line.starts_with('{'));
        let requests = lines.map(|line| serde_json::from_str(line).expect("JSON"));
        let resources = requests.flat_map(|request: Value| list(&request["resourceSpans"]));
        let spans = resources.flat_map(|one| {
            let resource = object(&one["resource"]["attributes"]);
            let spans = list(&one["scopeSpans"])
                .into_iter()
                .flat_map(|scope| list(&scope["spans"]));
            spans.map(move |mut span| {
                span["attributes"] = object(&span["attributes"]);
                span["resource"] = resource.clone();
                span
            })
        });
        spans.collect()
    }

    /// Waits for a span with this path.
    #[track_caller]
    pub(crate) fn wait_span(&self, path: &str) -> Value {
        self.wait_span_with("url.path", path)
    }

    /// Waits for a span with this attribute.
    #[track_caller]
    pub(crate) fn wait_span_with(&self, attribute: &str, value: &str) -> Value {
        wait_for("a span", || {
            let mut spans = self.spans().into_iter();
            spans.find(|span| span["attributes"][attribute] == value)
        })
    }

    /// All that it has printed.
    pub(crate) fn log(&self) -> String {
        self.0.log()
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The attributes of OTLP's JSON, whose integers are strings.
fn object(attributes: &Value) -> Value {
    let attributes = list(attributes).into_iter().map(|attribute| {
        let key = attribute["key"].as_str().expect("a key").to_owned();
        let (kind, value) = attribute["value"]
            .as_object()
            .and_then(|value| value.iter().next())
            .expect("a value");
        let value = match (kind.as_str(), value.as_str()) {
            ("intValue", Some(digits)) => digits.parse::<i64>().expect("a number").into(),
            _ => value.clone(),
        };
        (key, value)
    });
    Value::Object(attributes.collect::<Map<_, _>>())
}

const CONFIG: &str = r#"
receivers: {otlp: {protocols: {http: {endpoint: "ADDRESS"TLS}}}}
exporters: {print: {}}
service: {pipelines: {traces: {receivers: [otlp], exporters: [print]}}}
"#;
