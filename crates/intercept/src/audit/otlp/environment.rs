//! The environment variables of OpenTelemetry that are honoured, and the resource and headers that they make.

use std::env::{self, VarError};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::messages::{KeyValue, Resource, Value};

/// Why the exporter could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// An environment variable is not of its format. Its value may be a secret, and is not quoted.
    #[error("{0} has to be NAME=VALUE,NAME=VALUE, percent-encoded")]
    Variable(&'static str),
    /// An environment variable is not UTF-8.
    #[error("{0} is not UTF-8")]
    NotUnicode(&'static str),
    /// The roots of this host can't be used.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// The resource of all spans: this service, with the attributes of OTEL_RESOURCE_ATTRIBUTES, and the name of OTEL_SERVICE_NAME.
pub(super) fn resource() -> Result<Resource, ExporterError> {
    let given = pairs(RESOURCE, &variable(RESOURCE)?)?;
    Ok(resource_of(given, &variable(SERVICE_NAME)?))
}

/// The further headers of requests to the collector.
pub(super) fn headers() -> Result<HeaderMap, ExporterError> {
    headers_of(&variable(HEADERS)?)
}

fn variable(name: &'static str) -> Result<String, ExporterError> {
    match env::var(name) {
        Ok(value) => Ok(value),
        Err(VarError::NotPresent) => Ok(String::new()),
        Err(VarError::NotUnicode(_)) => Err(ExporterError::NotUnicode(name)),
    }
}

fn resource_of(mut attributes: Vec<(String, String)>, service: &str) -> Resource {
    if !service.is_empty() {
        attributes.retain(|(key, _)| key != "service.name");
        attributes.push(("service.name".to_owned(), service.to_owned()));
    }
    for (key, value) in [
        ("service.name", "peername"),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ] {
        if !attributes.iter().any(|(given, _)| given == key) {
            attributes.push((key.to_owned(), value.to_owned()));
        }
    }
    Resource {
        attributes: attributes
            .into_iter()
            .map(|(key, value)| KeyValue::new(&key, Value::String(value)))
            .collect(),
    }
}

fn headers_of(text: &str) -> Result<HeaderMap, ExporterError> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(HEADERS, text)? {
        let name: HeaderName = name.parse().map_err(|_| ExporterError::Variable(HEADERS))?;
        let mut value =
            HeaderValue::try_from(value).map_err(|_| ExporterError::Variable(HEADERS))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Parses a list in the format of W3C Baggage, without properties.
fn pairs(name: &'static str, text: &str) -> Result<Vec<(String, String)>, ExporterError> {
    let pair = |entry: &str| {
        let (key, value) = entry.split_once('=')?;
        let decode = |part: &str| {
            let decoded = percent_decode_str(part.trim()).decode_utf8().ok()?;
            Some(decoded.into_owned())
        };
        Some((decode(key)?, decode(value)?)).filter(|(key, _)| !key.is_empty())
    };
    text.split(',')
        .filter(|entry| !entry.trim().is_empty())
        .map(|entry| pair(entry).ok_or(ExporterError::Variable(name)))
        .collect()
}

const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(given: &str, service: &str) -> Vec<(String, String)> {
        let resource = resource_of(pairs(RESOURCE, given).unwrap(), service);
        let attributes = resource.attributes.into_iter();
        let text = attributes.map(|one| match one.value.and_then(|any| any.value) {
            Some(Value::String(text)) => (one.key, text),
            other => panic!("{other:?}"),
        });
        text.collect()
    }

    #[test]
    fn resource_is_this_service_with_the_attributes_that_are_given() {
        let version = (
            "service.version".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        );
        let name = |name: &str| ("service.name".to_owned(), name.to_owned());
        assert_eq!(attributes("", ""), [name("peername"), version.clone()]);
        let given = "deployment.environment.name=a%2Cb, service.name=given";
        let stage = ("deployment.environment.name".to_owned(), "a,b".to_owned());
        assert_eq!(
            attributes(given, ""),
            [stage.clone(), name("given"), version.clone()]
        );
        assert_eq!(attributes(given, "mine"), [stage, name("mine"), version]);
    }

    #[test]
    fn headers_are_percent_decoded_and_not_quoted_in_errors() {
        let headers = headers_of("authorization=Basic%20c2VjcmV0,x-tenant=one,").unwrap();
        assert_eq!(headers["authorization"], "Basic c2VjcmV0");
        assert_eq!(headers["x-tenant"], "one");
        assert!(!format!("{headers:?}").contains("c2VjcmV0"));
        for text in ["secret", "=secret", "a b=secret", "a=secret%0A"] {
            let error = headers_of(text).unwrap_err().to_string();
            assert!(
                error.contains(HEADERS) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
