//! Reload (SIGHUP): files are read again, all or none take effect.

use rustix::process::Signal;

use crate::harness::lab::wait_for;
use crate::harness::peername::BINARY;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig};

#[test]
fn reload_applies_a_rotated_authority_and_a_new_list() {
    let stage = InterceptLab::new();
    let list = stage.scratch.write("clients", "203.0.113.0/24\n");
    let rig = stage.start(&[&format!("--allow-client=@{list}")]);
    let reload = |says: &str| {
        let count = || rig.proxy.log().matches(says).count();
        let before = count();
        rig.proxy.signal(Signal::HUP);
        wait_for(says, || (count() > before).then_some(()));
    };
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    let ca = rig.scratch.path_text("ca");
    rig.lab.client.run(BINARY, &["ca", "rotate", "--ca", &ca]);
    let pem = rig.lab.client.run(BINARY, &["ca", "export", "--ca", &ca]);
    rig.scratch.write("ca.pem", only_first(&pem));
    // Still signed by the old authority, which this client does not trust any more.
    assert!(!rig.try_curl(&["https://a.test/"]).status.success());
    reload("\"reloaded: ");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");

    rig.scratch.write("clients", "not an address\n");
    reload("reload refused, all stays as it was");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    rig.scratch.write("clients", "192.0.2.0/24\n");
    reload("\"reloaded: ");
    assert!(!rig.try_curl(&["https://a.test/"]).status.success());
    rig.proxy.signal(Signal::USR1);
    rig.scratch.write("clients", "any\n");
    reload("\"reloaded: ");
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
}

#[test]
fn every_thread_is_confined() {
    let stage = InterceptLab::new();
    let rig = stage.start(&[]);
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
    for (thread, mode) in rig.proxy.thread_status_fields("Seccomp") {
        assert_eq!(mode, "2", "{thread}");
    }
    assert_eq!(rig.proxy.status_field("NoNewPrivs"), "1");
}

/// A file without an end is refused at once, and the next reload works.
#[test]
fn fifo_does_not_stop_later_reloads() {
    let rig = InterceptRig::new(&[]);
    rig.proxy.wait_started();
    for name in ["root.pem", "ca/authority.pem"] {
        let (path, aside) = (rig.scratch.path_text(name), rig.scratch.path_text("aside"));
        rig.lab.server.run("mv", &[&path, &aside]);
        rig.lab.server.run("mkfifo", &["--mode=600", &path]);
        rig.proxy.signal(Signal::HUP);
        rig.proxy.wait_line("the refusal", |line| {
            let is_it = line.contains("reload refused") && line.contains(&path);
            (is_it && line.contains("not a regular file")).then_some(())
        });
        rig.lab.server.run("mv", &[&aside, &path]);
    }
    rig.proxy.signal(Signal::HUP);
    rig.proxy.wait_line("a reload", |line| {
        line.contains("\"reloaded: ").then_some(())
    });
    assert_eq!(rig.curl(&["https://a.test/"]), "hello\n");
}

/// The first certificate: `ca export` has the predecessors after the authority.
fn only_first(pem: &str) -> &str {
    let end = "-----END CERTIFICATE-----\n";
    pem.find(end).map_or(pem, |at| &pem[..at + end.len()])
}
