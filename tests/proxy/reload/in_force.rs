//! `/config` of the admin endpoint: the configuration in force.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Site, table, wait_logged};
use crate::harness::addr::LISTEN_V4;
use crate::harness::admin::{ADMIN, get};
use crate::harness::lab::wait_for;

/// `/config` shows the keys of the file with their defaults, and after a reload the new ones. A refused reload changes
/// nothing.
#[test]
fn config_in_force_is_shown() {
    let site = Site::through(&[], &table(LISTEN_V4, &["10.81.0.0/24"]), &[ADMIN]);
    site.proxy.wait_started();
    let shown = || -> Value {
        let answer = get(&site.lab.server, &[], "/config");
        let json = answer.strip_suffix("200").expect("200");
        serde_json::from_str(json).expect("JSON")
    };
    let config = shown();
    assert_eq!(config["listen"][0]["trust"], json!(["10.81.0.0/24"]));
    assert_eq!(config["listen"][0]["header-timeout"], json!("5s"));
    assert_eq!(config["drain"], json!("30s"));
    assert!(config["workers"].as_u64().is_some(), "{config}");

    site.file
        .write("proxy.toml", &table(LISTEN_V4, &["10.81.0.0/16"]));
    site.proxy.signal(Signal::HUP);
    wait_logged(&site.proxy, "\"reloaded\"", 1);
    wait_for("the new configuration", || {
        (shown()["listen"][0]["trust"] == json!(["10.81.0.0/16"])).then_some(())
    });
    site.file.write("proxy.toml", "nonsense");
    site.proxy.signal(Signal::HUP);
    wait_logged(&site.proxy, "reload refused", 1);
    assert_eq!(shown()["listen"][0]["trust"], json!(["10.81.0.0/16"]));
}
