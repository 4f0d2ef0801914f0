//! Where nothing is sent, whatever it is called.

use super::rig::{Rig, Stage};

#[test]
fn what_is_not_public_is_refused_unless_listed() {
    let stage = Stage::new();
    let proxy = stage.proxy(&[]);
    let rig = Rig {
        _origin: crate::lab::Process::start(&stage.lab.server, "sleep", &["1000"]),
        proxy,
        lab: stage.lab,
        scratch: stage.scratch,
    };
    for (url, code) in [
        ("https://a.test/", "destination_not_public"),
        ("https://10.81.0.1/", "destination_not_public"),
        ("https://private.test/", "destination_not_public"),
        ("https://shared.test/", "destination_not_public"),
        ("https://metadata.test/", "destination_metadata"),
        ("https://local.test/", "destination_this_host"),
        ("http://local.test:8080/", "destination_loop"),
        ("http://proxy.test:8080/", "destination_loop"),
        ("https://proxy.test/", "destination_this_host"),
        ("https://nat64.test/", "destination_not_public"),
        ("https://mapped.test/", "destination_not_public"),
        ("https://sixtofour.test/", "destination_not_public"),
        ("https://[::1]/", "destination_this_host"),
        ("http://[::ffff:127.0.0.1]/", "destination_this_host"),
        ("http://0.0.0.0/", "destination_nobody"),
        ("http://224.0.0.1/", "destination_nobody"),
        ("http://198.51.100.1:22/", "destination_port"),
    ] {
        let problem = rig.problem(&["-g", url]);
        assert_eq!(
            (&problem["code"], &problem["status"]),
            (&code.into(), &403.into()),
            "{url}: {problem}"
        );
    }
}

#[test]
fn what_is_listed_is_reached() {
    let rig = Rig::new(&[]);
    assert_eq!(rig.curl(&["http://a.test:8081/"]), "hello\n");
    let problem = rig.problem(&["https://private.test/"]);
    assert_eq!(problem["code"], "destination_not_public", "{problem}");
}
