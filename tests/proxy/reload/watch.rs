//! `--watch`: a change of a file of the configuration reloads it, without a signal.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use super::{PRIVILEGED, ReloadRig, both_listeners, table};
use crate::harness::addr::{LISTEN_V4, TARGET_V4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, LeasedFile, Scratch};
use crate::harness::peername::Peername;
use crate::harness::rig::proxy::connect_fresh_client;

/// The file is reloaded when it is written in place and when an editor replaces it, and a list that the file names is, too. A
/// broken file is refused and leaves the old configuration in force; another file of the directory causes no reload.
#[test]
fn watch_reloads_the_file_and_the_lists_it_names() {
    let rig = ReloadRig::start_through(&[], &table(LISTEN_V4, &["10.81.0.0/24"]), &["--watch"]);
    rig.proxy.wait_started();
    rig.files.write("proxy.toml", &both_listeners());
    rig.proxy.wait_logged_times("\"reloaded\"", 1);
    rig.connect(PRIVILEGED);

    let list = rig.files.write("trusted", "10.81.0.0/24\n");
    let named = table(LISTEN_V4, &[&format!("@{list}")]);
    let next = rig.files.write("proxy.toml.new", &named);
    fs::rename(next, rig.files.path("proxy.toml")).expect("a rename");
    rig.proxy.wait_logged_times("\"reloaded\"", 2);
    rig.connect(LISTEN_V4);

    rig.files.write("trusted", "192.0.2.0/24\n");
    rig.proxy.wait_logged_times("\"reloaded\"", 3);
    Conn::assert_refused(&rig.lab.balancer, LISTEN_V4);

    rig.files.write("trusted", "nonsense\n");
    rig.proxy.wait_logged_times("reload refused", 1);
    Conn::assert_refused(&rig.lab.balancer, LISTEN_V4);
    rig.files.write("trusted", "10.81.0.0/24\n");
    rig.proxy.wait_logged_times("\"reloaded\"", 4);
    rig.connect(LISTEN_V4);

    rig.files.write("unrelated", "");
    // Longer than the time in which a change is noticed.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(rig.proxy.count_logged("\"reloaded\""), 4);
}

/// Kubernetes replaces a ConfigMap by replacing the link `..data` to the directory of all its files.
#[test]
fn watch_reloads_a_config_map() {
    let lab = Lab::new();
    let map = Scratch::new();
    let revision = |name: &str, trust: &str| {
        fs::create_dir(map.path(name)).expect("a directory");
        let file = Path::new(name).join("proxy.toml");
        map.write(file.to_str().expect("text"), &table(LISTEN_V4, &[trust]));
        symlink(name, map.path("..data_tmp")).expect("a link");
        fs::rename(map.path("..data_tmp"), map.path("..data")).expect("a rename");
    };
    revision("..1", "10.81.0.0/24");
    symlink("..data/proxy.toml", map.path("proxy.toml")).expect("a link");
    let config = format!("--config={}", map.path_text("proxy.toml"));
    let args = ["proxy", "--log-format=json", "--watch", &config];
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    proxy.wait_started();
    for round in 1..=3 {
        revision(&format!("..{}", 2 * round), "192.0.2.0/24");
        fs::remove_dir_all(map.path(&format!("..{}", 2 * round - 1))).expect("the old revision");
        proxy.wait_logged_times("\"reloaded\"", 2 * round - 1);
        Conn::assert_refused(&lab.balancer, LISTEN_V4);
        revision(&format!("..{}", 2 * round + 1), "10.81.0.0/24");
        fs::remove_dir_all(map.path(&format!("..{}", 2 * round))).expect("the old revision");
        proxy.wait_logged_times("\"reloaded\"", 2 * round);
        let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
    }
}

/// The kernel sends no event when a file can be read again, so the proxy retries.
#[test]
fn watch_reloads_a_file_that_could_not_be_read_for_a_while() {
    let rig = ReloadRig::start_through(&[], &table(LISTEN_V4, &["10.81.0.0/24"]), &["--watch"]);
    rig.proxy.wait_started();
    let (host, text) = (&rig.lab.server, both_listeners());
    let leased = LeasedFile::replace(host, &rig.files, "proxy.toml", &text);
    rig.proxy.wait_logged("reload refused");
    rig.connect(LISTEN_V4);
    drop(leased);
    rig.proxy.wait_logged("\"reloaded\"");
    rig.connect(PRIVILEGED);
}
