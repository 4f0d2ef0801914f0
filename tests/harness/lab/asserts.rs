//! Texts, JSON and the output of commands: how to read them, and assertions about them.

use std::process::Output;

use serde_json::Value;

/// Asserts that a text has each of these parts.
#[track_caller]
pub(crate) fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Asserts how often a text has this part.
#[track_caller]
pub(crate) fn assert_count(text: &str, part: &str, count: usize) {
    assert_eq!(text.matches(part).count(), count, "{part:?} in {text}");
}

/// Asserts that a JSON object has these fields.
#[track_caller]
pub(crate) fn assert_fields(object: &Value, fields: Value) {
    for (name, value) in fields.as_object().expect("an object") {
        assert_eq!(object[name], *value, "{name}: {object}");
    }
}

/// Asserts this exit code, and that standard error has each of these parts.
#[track_caller]
pub(crate) fn assert_fails(output: &Output, code: i32, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_contains(&stderr_text(output), parts);
}

/// Asserts that this is all of standard output.
#[track_caller]
pub(crate) fn assert_prints(output: &Output, text: &str) {
    assert_eq!(stdout_text(output), text, "{output:?}");
}

/// Asserts success, and returns what the command has printed on standard output.
#[track_caller]
pub(crate) fn assert_succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    stdout_text(output)
}

/// What a command has printed on standard output.
pub(crate) fn stdout_text(output: &Output) -> String {
    lossy_text(&output.stdout)
}

/// What a command has printed on standard error.
pub(crate) fn stderr_text(output: &Output) -> String {
    lossy_text(&output.stderr)
}

/// The lines of a text that are JSON.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

pub(crate) fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
