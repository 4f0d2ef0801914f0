//! The resource of the spans and the headers of requests to the collector, from OpenTelemetry's environment variables.

use std::env::{self, VarError};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::messages::{KeyValue, Resource, Value};

/// Why the exporter could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// An environment variable is not a list of pairs. The value may be a secret, so the error does not quote it.
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
    let attributes = parse_pairs(RESOURCE, &variable(RESOURCE)?)?;
    Ok(build_resource(attributes, &variable(SERVICE_NAME)?))
}

/// The additional headers of requests to the collector, from OTEL_EXPORTER_OTLP_HEADERS.
pub(super) fn headers() -> Result<HeaderMap, ExporterError> {
    parse_headers(&variable(HEADERS)?)
}

fn variable(name: &'static str) -> Result<String, ExporterError> {
    match env::var(name) {
        Ok(value) => Ok(value),
        Err(VarError::NotPresent) => Ok(String::new()),
        Err(VarError::NotUnicode(_)) => Err(ExporterError::NotUnicode(name)),
    }
}

fn build_resource(mut attributes: Vec<(String, String)>, service: &str) -> Resource {
    if !service.is_empty() {
        attributes.retain(|(key, _)| key != "service.name");
        attributes.push(("service.name".to_owned(), service.to_owned()));
    }
    for (key, value) in [
        ("service.name", "peername"),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ] {
        if !attributes.iter().any(|(present, _)| present == key) {
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

fn parse_headers(text: &str) -> Result<HeaderMap, ExporterError> {
    let mut headers = HeaderMap::new();
    for (name, value) in parse_pairs(HEADERS, text)? {
        let name: HeaderName = name.parse().map_err(|_| ExporterError::Variable(HEADERS))?;
        let mut value =
            HeaderValue::try_from(value).map_err(|_| ExporterError::Variable(HEADERS))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Parses the list in an environment variable, in the format of W3C Baggage without properties.
fn parse_pairs(variable: &'static str, text: &str) -> Result<Vec<(String, String)>, ExporterError> {
    text.split(',')
        .filter(|entry| !entry.trim().is_empty())
        .map(|entry| parse_pair(entry).ok_or(ExporterError::Variable(variable)))
        .collect()
}

fn parse_pair(entry: &str) -> Option<(String, String)> {
    let (key, value) = entry.split_once('=')?;
    Some((percent_decode(key)?, percent_decode(value)?)).filter(|(key, _)| !key.is_empty())
}

fn percent_decode(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text.trim()).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(variable: &str, service: &str) -> Vec<(String, String)> {
        build_resource(parse_pairs(RESOURCE, variable).unwrap(), service)
            .attributes
            .into_iter()
            .map(
                |attribute| match attribute.value.and_then(|any| any.value) {
                    Some(Value::String(text)) => (attribute.key, text),
                    other => panic!("{other:?}"),
                },
            )
            .collect()
    }

    #[test]
    fn resource_has_the_attributes_of_the_environment_and_the_name_of_the_service() {
        let version = (
            "service.version".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        );
        let name = |name: &str| ("service.name".to_owned(), name.to_owned());
        assert_eq!(attributes("", ""), [name("peername"), version.clone()]);
        let variable = "deployment.environment.name=a%2Cb, service.name=other";
        let stage = ("deployment.environment.name".to_owned(), "a,b".to_owned());
        assert_eq!(
            attributes(variable, ""),
            [stage.clone(), name("other"), version.clone()]
        );
        assert_eq!(attributes(variable, "mine"), [stage, name("mine"), version]);
    }

    #[test]
    fn headers_are_percent_decoded_and_not_quoted_in_errors() {
        let headers = parse_headers("authorization=Basic%20c2VjcmV0,x-tenant=one,").unwrap();
        assert_eq!(headers["authorization"], "Basic c2VjcmV0");
        assert_eq!(headers["x-tenant"], "one");
        assert!(!format!("{headers:?}").contains("c2VjcmV0"));
        for text in ["secret", "=secret", "a b=secret", "a=secret%0A"] {
            let error = parse_headers(text).unwrap_err().to_string();
            assert!(
                error.contains(HEADERS) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
