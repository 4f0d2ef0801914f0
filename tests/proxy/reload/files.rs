//! A reload is refused at once if it names a FIFO, a device, a file that is too large, or one that is no list. Its content is
//! not logged, and the next reload works.

use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Scratch, assert_contains};
use crate::harness::peername::Peername;
use crate::harness::rig::proxy::connect_client;

#[test]
fn unsuitable_files_do_not_stop_later_reloads() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let list = scratch.write("trusted", "10.81.0.0/24\n");
    let config = |trust: &str| {
        format!(
            "[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntarget-v4 = \"{TARGET_V4}\"\ntrust = [\"@{trust}\"]\n"
        )
    };
    let file = scratch.write("proxy.toml", &config(&list));
    let args = ["proxy", "--log-format=json", "--config", &file];
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let fifo = scratch.path_text("fifo");
    lab.server.run("mkfifo", &[&fifo]);
    let endless = scratch.path_text("endless");
    symlink("/dev/zero", &endless).expect("a link");
    let large = scratch.write("large", &"10.0.0.1\n".repeat(1 << 19));
    let secret = scratch.write("secret", "10.81.0.0/24\nroot:$6$salt$hash:19000\n");
    let reload = |content: &str, says: &str| {
        scratch.write("proxy.toml", content);
        proxy.reload(says)
    };
    for (trust, says) in [
        (&fifo, "fifo: not a regular file"),
        (&endless, "endless: outside of the directories"),
        (&large, "large: larger than 4194304 bytes"),
        (&secret, "secret, line 2: neither a network nor an address"),
    ] {
        let refused = reload(&config(trust), says);
        assert_contains(&refused, &["reload refused"]);
        assert!(!refused.contains("hash"), "{refused}");
        let _down = connect_client(&lab, LISTEN_V4, fresh_client_v4());
        backend.accept();
    }
    // The same for the configuration file, which each reload opens by its name.
    let aside = scratch.path_text("aside");
    lab.server.run("mv", &[&file, &aside]);
    lab.server.run("mkfifo", &[&file]);
    proxy.reload("proxy.toml: not a regular file");
    lab.server.run("rm", &[&file]);
    // A refused reload has read the list in its new state.
    scratch.write("trusted", "192.0.2.0/24\n");
    let refused = config(&list) + "header-timeout = \"never\"\n";
    assert_contains(&reload(&refused, "header-timeout"), &["reload refused"]);
    // The next reload is applied, although the previous ones were refused: it withdraws the balancer's trust, and its line names
    // the list.
    let applied: Value =
        serde_json::from_str(&reload(&config(&list), "\"reloaded\"")).expect("JSON");
    assert_contains(&applied["files"].to_string(), &[&list]);
    Conn::assert_refused(&lab.balancer, LISTEN_V4);
    backend.assert_no_connection();
    // What was named is in force now.
    let again: Value = serde_json::from_str(&reload(&config(&list), "\"reloaded\"")).expect("JSON");
    assert!(!again["files"].to_string().contains(&list), "{again}");
}
