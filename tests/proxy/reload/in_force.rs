//! `/config` of the admin endpoint: the configuration in force.

use serde_json::{Value, json};

use super::{ReloadRig, table};
use crate::harness::addr::LISTEN_V4;
use crate::harness::admin::{ADMIN, get, wait_metric};
use crate::harness::lab::{assert_contains, stdout_text, wait_until};
use crate::harness::peername::Peername;
use crate::harness::programs::browser::wait_page_shows;

/// `/config` shows the keys of the file with their defaults, and after a reload the new ones. A refused reload changes
/// nothing.
#[test]
fn config_in_force_is_shown() {
    let rig = ReloadRig::start_through(&[], &table(LISTEN_V4, &["10.81.0.0/24"]), &[ADMIN]);
    rig.proxy.wait_started();
    let get_json = |path| -> Value {
        let answer = get(&rig.lab.server, &[], path);
        serde_json::from_str(answer.strip_suffix("200").expect("200")).expect("JSON")
    };
    let config = || get_json("/config");
    let status = || get_json("/status");
    assert_eq!(status()["last_reload"], Value::Null);
    let initial = config();
    assert_eq!(initial["listen"][0]["trust"], json!(["10.81.0.0/24"]));
    assert_eq!(initial["listen"][0]["header-timeout"], json!("5s"));
    assert_eq!(initial["drain"], json!("30s"));
    assert_eq!(initial["listen"][0]["udp-header"], json!("each"));
    assert_eq!(initial["data-path"], json!("auto"));
    assert_eq!(initial["upgrade-drain"], json!("1h"));
    assert!(initial["workers"].as_u64().is_some(), "{initial}");

    rig.files
        .write("proxy.toml", &table(LISTEN_V4, &["10.81.0.0/16"]));
    rig.proxy.reload("\"reloaded\"");
    wait_until("the new configuration", || {
        config()["listen"][0]["trust"] == json!(["10.81.0.0/16"])
    });
    assert_eq!(status()["last_reload"]["refused"], Value::Null);
    let applied = status()["last_reload"]["at"].as_u64().expect("a time");
    let two_errors = "[[listen]]\nlisten = 7\ntarget = 7\n";
    rig.files.write("proxy.toml", two_errors);
    let logged = rig.proxy.reload("reload refused");
    assert_contains(&logged, &["; ", "proxy.toml, line 3, "]);
    // Validation goes on after errors of keys.
    assert_contains(&logged, &["[[listen]]: trust: no network is listed"]);
    assert!(!logged.contains("\\n"), "{logged}");
    assert_eq!(config()["listen"][0]["trust"], json!(["10.81.0.0/16"]));
    let refused = status()["last_reload"]["refused"].to_string();
    assert_contains(&refused, &["proxy.toml, line 2"]);
    for line in [
        "peername_reloads_total{result=\"applied\"} 1",
        "peername_reloads_total{result=\"refused\"} 1",
        "peername_upgrades_refused_total 0",
        &format!("peername_reload_last_success_timestamp_seconds {applied}"),
        &format!(
            "peername_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        ),
    ] {
        wait_metric(&rig.lab.server, &[], line);
    }
    wait_page_shows(&rig.lab.server, &["Last reload and upgrade", "refused: "]);
    let top = Peername::run(&rig.lab.server, &["top", "--admin=127.0.0.1:9300"]);
    assert_contains(&stdout_text(&top), &["the last reload was refused: "]);
}
