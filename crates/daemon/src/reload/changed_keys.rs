//! Which keys of a configuration a reload has changed, for its log line.

use std::collections::BTreeSet;

use serde_json::Value;

/// The keys whose values differ between two configurations in JSON, as `listen.target`, separated by commas. A table that was
/// added or removed is one key.
pub(super) fn changed_keys(before: &str, after: &str) -> String {
    let [before, after] =
        [before, after].map(|text| serde_json::from_str(text).unwrap_or_default());
    let mut keys = Vec::new();
    collect(&before, &after, String::new(), &mut keys);
    keys.sort();
    keys.dedup();
    keys.join(", ")
}

fn collect(before: &Value, after: &Value, key: String, keys: &mut Vec<String>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
            for name in names {
                let (before, after) = (before.get(name), after.get(name));
                let nested = match &*key {
                    "" => name.clone(),
                    _ => format!("{key}.{name}"),
                };
                let (before, after) = (
                    before.unwrap_or(&Value::Null),
                    after.unwrap_or(&Value::Null),
                );
                collect(before, after, nested, keys);
            }
        }
        (Value::Array(before), Value::Array(after))
            if are_tables(before) && before.len() == after.len() =>
        {
            for (before, after) in before.iter().zip(after) {
                collect(before, after, key.clone(), keys);
            }
        }
        _ => keys.push(key),
    }
}

fn are_tables(values: &[Value]) -> bool {
    values.iter().all(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_other_values_are_named_with_their_table() {
        let before = r#"{"workers": 2, "trust": ["10.0.0.1"], "listen": [{"target": "a", "mark": 1}, {"target": "b"}]}"#;
        for (after, changed) in [
            (before, ""),
            (
                r#"{"workers": 2, "trust": ["10.0.0.1"], "listen": [{"target": "a", "mark": 1}, {"target": "c"}]}"#,
                "listen.target",
            ),
            (
                r#"{"workers": 3, "trust": ["10.0.0.1", "10.0.0.2"], "listen": [{"target": "c"}, {"target": "b"}]}"#,
                "listen.mark, listen.target, trust, workers",
            ),
            (
                r#"{"workers": 2, "trust": ["10.0.0.1"], "listen": []}"#,
                "listen",
            ),
        ] {
            assert_eq!(changed_keys(before, after), changed);
        }
    }
}
