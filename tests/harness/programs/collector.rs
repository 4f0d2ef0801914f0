//! An OpenTelemetry Collector, which prints the spans that it receives.

use std::net::SocketAddr;

use serde_json::{Map, Value};

use crate::harness::check::service::tool;
use crate::harness::lab::{Host, Process, Scratch, wait_for};

/// A running collector.
pub(crate) struct Collector(Process);

impl Collector {
    /// Starts a collector that receives OTLP over HTTP.
    pub(crate) fn start(host: &Host, scratch: &Scratch, address: SocketAddr) -> Self {
        Self::start_with(host, scratch, address, "")
    }

    /// Like [`Self::start`], over TLS with this certificate and key (paths).
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

    /// The spans so far. In each, `attributes` is an object, and so is `resource`, the attributes of its resource.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let mut spans = Vec::new();
        for line in self.0.log().lines().filter(|line| line.starts_with('{')) {
            let request: Value = serde_json::from_str(line).expect("JSON");
            for resource_spans in list(&request["resourceSpans"]) {
                let resource = attributes_object(&resource_spans["resource"]["attributes"]);
                for scope_spans in list(&resource_spans["scopeSpans"]) {
                    for mut span in list(&scope_spans["spans"]) {
                        span["attributes"] = attributes_object(&span["attributes"]);
                        span["resource"] = resource.clone();
                        spans.push(span);
                    }
                }
            }
        }
        spans
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
            self.spans()
                .into_iter()
                .find(|span| span["attributes"][attribute] == value)
        })
    }

    /// Everything that the collector has printed so far.
    pub(crate) fn log(&self) -> String {
        self.0.log()
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Converts attributes to an object. In OTLP's JSON they are a list, and integers are strings.
fn attributes_object(attributes: &Value) -> Value {
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
