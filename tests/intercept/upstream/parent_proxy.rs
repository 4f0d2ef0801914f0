//! A parent proxy between this one and all origins.

use std::net::SocketAddr;

use crate::harness::addr::v4;
use crate::harness::lab::{Process, with_files};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR};

/// tinyproxy, which requires a password: tunnels for TLS, absolute form for the rest.
#[test]
fn all_requests_go_through_the_parent() {
    let stage = InterceptLab::new();
    let _parent = start_tinyproxy(&stage);
    let rig = stage.start(&["--upstream-proxy=http://us%65r:secret@10.81.0.1:3128"]);
    for url in ["https://a.test/echo", "http://a.test/echo"] {
        assert!(rig.curl(&[url]).starts_with("GET a.test "), "{url}");
    }
    let log = rig.wait_origin_log(2);
    assert!(
        log.iter().all(|line| line.starts_with("10.81.0.1 ")),
        "the parent's address: {log:?}"
    );
    assert!(!rig.proxy.log().contains("secret"));
}

#[test]
fn each_error_of_the_parent_has_its_code() {
    let stage = InterceptLab::new();
    let _parent = start_tinyproxy(&stage);
    let rig = stage.start(&["--upstream-proxy=http://10.81.0.1:3128"]);
    let problem = rig.curl_problem(&["https://a.test/"]);
    assert_eq!(problem["code"], "upstream_proxy_refused", "{problem}");
    let rig = InterceptLab::new().start(&["--upstream-proxy=http://10.81.0.1:3129"]);
    let problem = rig.curl_problem(&["https://a.test/"]);
    assert_eq!(problem["code"], "upstream_proxy_failed", "{problem}");
}

#[test]
fn loop_of_proxies_ends() {
    let rig = InterceptLab::new().start(&[&format!("--upstream-proxy=http://{PROXY_ADDR}")]);
    let tunnel = rig.curl_problem(&["https://a.test/"]);
    assert_eq!(tunnel["code"], "upstream_proxy_refused", "{tunnel}");
    assert_eq!(rig.curl_status(&["http://a.test/"]), 508);
}

#[test]
fn request_with_a_long_via_is_refused() {
    let rig = InterceptRig::new(&[]);
    let via = |hops: usize| format!("Via: {}", ["1.1 a-proxy"; 100][..hops].join(", "));
    assert_eq!(rig.curl_status(&["-H", &via(9), "http://a.test/echo"]), 200);
    let problem = rig.curl_problem(&["-H", &via(100), "http://a.test/echo"]);
    assert_eq!(problem["code"], "proxy_loop", "{problem}");
}

/// Each proxy adds itself to the Via of the other, of relayed tunnels and of requests.
#[test]
fn loop_of_two_proxies_ends() {
    let args = [
        &format!("--upstream-proxy=http://{OTHER_PROXY}"),
        "--passthrough=a.test",
    ];
    let rig = InterceptLab::new().start(&args);
    let ca = rig.scratch.path_text("ca");
    let line = format!(
        "intercept --listen={OTHER_PROXY} --allow-client=any --passthrough=a.test --ca {ca} \
         --upstream-proxy=http://{PROXY_ADDR}"
    );
    let _other = Peername::start(&rig.lab.balancer, &words(&line), &[OTHER_PROXY]);
    assert!(!rig.try_curl(&["https://a.test/"]).status.success());
    rig.proxy.wait_logged("\"proxy_loop\"");
    assert_eq!(rig.curl_status(&["http://a.test/"]), 508);
}

/// Both open the TLS of their tunnels, and each trusts the authority of the other. So only the Via of the tunnels ends the loop.
#[test]
fn loop_of_two_proxies_that_open_tls_ends() {
    let stage = InterceptLab::new();
    let other_ca = stage.scratch.path_text("other-ca");
    let run_ca = |command| {
        stage
            .lab
            .client
            .run(BINARY, &["ca", command, "--ca", &other_ca])
    };
    run_ca("init");
    let other_pem = stage.scratch.write("other.pem", &run_ca("export"));
    let rig = stage.start(&[
        &format!("--upstream-proxy=http://{OTHER_PROXY}"),
        &format!("--extra-ca={other_pem}"),
    ]);
    let pem = rig.scratch.path_text("ca.pem");
    let line = format!(
        "intercept --listen={OTHER_PROXY} --allow-client=any --ca {other_ca} --extra-ca {pem} \
         --upstream-proxy=http://{PROXY_ADDR}"
    );
    let _other = Peername::start(&rig.lab.balancer, &words(&line), &[OTHER_PROXY]);
    let problem = rig.curl_problem(&["https://a.test/"]);
    assert_eq!(problem["code"], "upstream_proxy_refused", "{problem}");
    assert_eq!(
        problem["detail"], "the upstream proxy answered CONNECT with 508",
        "{problem}"
    );
    rig.proxy
        .wait_logged_parts(&["\"CONNECT\"", "\"proxy_loop\""]);
}

fn start_tinyproxy(stage: &InterceptLab) -> Process {
    let config = stage.scratch.write("tinyproxy.conf", TINYPROXY);
    let hosts = stage.scratch.path_text("hosts");
    let through = with_files(&[(&hosts, "/etc/hosts")]);
    let args = ["-d", "-c", &config];
    let process = Process::start_through(&stage.lab.server, &through, "tinyproxy", &args);
    process.wait_listening(&[v4([10, 81, 0, 1], 3128)])
}

const OTHER_PROXY: SocketAddr = v4([203, 0, 113, 1], 8081);

const TINYPROXY: &str = "\
Listen 10.81.0.1
Port 3128
Timeout 60
MaxClients 20
BasicAuth user secret
ConnectPort 443
";
