//! Destinations that are refused, by whatever name.

use serde_json::json;

use crate::harness::lab::{Process, assert_fields};
use crate::harness::peername::words;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig};

#[test]
fn special_destinations_are_refused() {
    let stage = InterceptLab::new();
    let rig = InterceptRig {
        proxy: stage.start_proxy(&[]),
        // No request reaches an origin.
        _origin: Process::start(&stage.lab.server, "sleep", &["1000"]),
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
        ("http://local.test:8080/", "destination_own_listener"),
        ("http://proxy.test:8080/", "destination_own_listener"),
        ("https://proxy.test:8080/", "destination_own_listener"),
        ("https://proxy.test/", "destination_this_host"),
        ("https://nat64.test/", "destination_not_public"),
        ("https://mapped.test/", "destination_not_public"),
        ("https://sixtofour.test/", "destination_not_public"),
        ("https://[::1]/", "destination_this_host"),
        ("http://[::ffff:127.0.0.1]/", "destination_this_host"),
        ("http://0.0.0.0/", "destination_not_a_server"),
        ("http://224.0.0.1/", "destination_not_a_server"),
        ("http://198.51.100.1/", "destination_not_public"),
        ("http://[2001:db8::1]/", "destination_not_public"),
        ("http://[::ffff:0:10.0.0.1]/", "destination_not_public"),
        // Teredo, of a client behind 10.0.0.1.
        (
            "http://[2001:0:c000:201:0:ffff:f5ff:fffe]/",
            "destination_not_public",
        ),
        ("http://9.9.9.9:22/", "destination_port"),
    ] {
        let problem = rig.curl_problem(&["-g", url]);
        println!("{url}");
        assert_fields(&problem, json!({"code": code, "status": 403}));
    }
}

/// Networks in the list never include this host or a metadata service, in whatever form their addresses are written.
#[test]
fn listed_network_does_not_include_this_host() {
    let rig = InterceptRig::new(&words(
        "--allow-destination=::/0 --allow-destination=0.0.0.0/0 \
         --allow-destination=127.0.0.1:9000-9999 --admin=127.0.0.1:9300",
    ));
    for (url, code) in [
        ("http://127.0.0.1:9300/metrics", "destination_own_listener"),
        ("http://127.0.0.1/", "destination_this_host"),
        ("http://[64:ff9b::7f00:1]/", "destination_this_host"),
        ("http://[2002:7f00:1::]/", "destination_this_host"),
        ("http://169.254.169.254/", "destination_metadata"),
        ("http://[64:ff9b::a9fe:a9fe]/", "destination_metadata"),
        ("http://[::ffff:0:169.254.169.254]/", "destination_metadata"),
        ("http://[fd00:ec2::254]/", "destination_metadata"),
    ] {
        let problem = rig.curl_problem(&["-g", url]);
        assert_eq!(problem["code"], code, "{url}: {problem}");
    }
}

#[test]
fn listed_destination_is_reached() {
    let rig = InterceptRig::new(&[]);
    assert_eq!(rig.curl(&["http://a.test:8081/"]), "hello\n");
    let problem = rig.curl_problem(&["https://private.test/"]);
    assert_eq!(problem["code"], "destination_not_public", "{problem}");
}

/// Both requests are on one HTTP/2 connection, and wait for a connection to the origin at the same time. The address does not
/// answer.
#[test]
fn request_whose_rule_names_the_port_does_not_get_the_refusal_of_one_whose_rule_does_not() {
    let stage = InterceptLab::new();
    let hosts = stage.scratch.read("hosts") + "9.9.9.9 public.test\n";
    stage.scratch.write("hosts", &hosts);
    let rig = stage.start(&[
        "--allow=GET public.test:9000/x",
        "--allow=public.test/y",
        "--connect-timeout=1s",
    ]);
    let client = include_str!("concurrent_client.py");
    let printed = rig.run_python_client(client, &["public.test:9000", "/y", "/x"]);
    let [without, with] = printed.lines().collect::<Vec<_>>()[..] else {
        panic!("two lines: {printed}");
    };
    assert_eq!(without, "/y 403 destination_port");
    assert!(with.contains(" connect_"), "{with}");
}
