//! The samples of a registry, parsed from its text: without protoc, prometheus-client encodes them in no other form. So each
//! metric is encoded in one place, and the page gets every metric.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Samples by name, such as `peername_connections_active`.
pub type Samples = BTreeMap<String, Vec<Sample>>;

/// A value of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Empty if the metric has no labels.
    pub labels: BTreeMap<String, String>,
    /// A finite number.
    pub value: f64,
}

/// Parses text of our own encoder; other lines are left out.
pub(super) fn parse(text: &str) -> Samples {
    let mut samples = Samples::new();
    for (name, sample) in text.lines().filter_map(parse_line) {
        samples.entry(name).or_default().push(sample);
    }
    samples
}

/// Parses `name{key="value",…} 1`.
fn parse_line(line: &str) -> Option<(String, Sample)> {
    let name_len = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at_checked(name_len)?;
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, quoted) = rest.split_once("=\"")?;
            let (value, after) = unquote(quoted)?;
            labels.insert(key.to_owned(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = rest.strip_prefix('}')?;
    }
    let value: f64 = rest.trim().parse().ok()?;
    let is_sample = !name.starts_with('#') && value.is_finite();
    is_sample.then(|| (name.to_owned(), Sample { labels, value }))
}

/// Returns the value up to its closing quote, and the text after the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                escaped => escaped,
            }),
            plain => value.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn samples_are_read_as_they_were_encoded() {
        let mut registry = Registry::default();
        let open = Gauge::<i64>::default();
        open.set(-3);
        registry.register("open", "Open {now} 1", open);
        let labels = [("reason", "a\"}\\,\n b"), ("listener", "[::1]:443")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let refused = Family::<Vec<(String, String)>, Counter>::default();
        refused.get_or_create(&labels.to_vec()).inc_by(7);
        registry.register("refused", "Refused", refused);
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");

        let samples = parse(&text);
        let sample = |labels: &[(String, String)], value| Sample {
            labels: labels.iter().cloned().collect(),
            value,
        };
        assert_eq!(samples["open"], [sample(&[], -3.0)]);
        assert_eq!(samples["refused_total"], [sample(&labels, 7.0)]);
        assert_eq!(samples.len(), 2, "{samples:?}");
    }

    #[test]
    fn other_text_has_no_samples() {
        for text in [
            "",
            "# EOF",
            "name",
            "name{",
            "name{a=\"",
            "name{a=\"b\"} x",
            "n NaN",
        ] {
            assert!(parse(text).is_empty(), "{text}");
        }
    }
}
