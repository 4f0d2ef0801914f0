//! Pages in headless Chromium.

use std::process::Command;

use serde_json::Value;

use crate::harness::lab::Host;

/// Opens the page of the admin endpoint on this host, and waits until it shows all these texts. In a table each cell
/// ends with a tab.
#[track_caller]
pub(crate) fn wait_page_shows(host: &Host, texts: &[&str]) {
    let texts = serde_json::to_string(texts).expect("JSON");
    let shows_all = format!("{texts}.every(text => document.body.innerText.includes(text))");
    browse_until(host, &shows_all);
}

/// Opens the page of the admin endpoint on this host, and waits until the JavaScript expression is true there. Returns
/// what `browser.py` prints: text, HTML and errors.
#[track_caller]
pub(crate) fn browse_until(host: &Host, expression: &str) -> Value {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", BROWSER, "http://127.0.0.1:9300/", expression]);
    let output = host.output(&mut command, "");
    let seen: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?} (make setup)"));
    assert_eq!(seen["is_true"], true, "{expression}: {seen:#}");
    // Errors of the page's script, and violations of its Content-Security-Policy.
    assert_eq!(seen["errors"].as_array().map(Vec::len), Some(0), "{seen:#}");
    seen
}

const BROWSER: &str = include_str!("browser/browser.py");
