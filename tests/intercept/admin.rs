//! The admin endpoint (`--admin`), and readiness while the check service can't be reached.

use std::process::Command;

use crate::harness::addr::v4;
use crate::harness::browser::wait_page_shows;
use crate::harness::check::service::Service;
use crate::harness::lab::wait_for;
use crate::harness::rig::intercept::{InterceptRig, LONG_CHECK_TIMEOUT};

const ADMIN: &str = "http://127.0.0.1:9300";

impl InterceptRig {
    /// Requests a path of the admin endpoint; returns status and body.
    fn ask_admin(&self, path: &str, args: &[&str]) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "-w", "%{http_code}"]);
        command.args(args).arg(format!("{ADMIN}{path}"));
        let output = self.lab.balancer.output(&mut command, "");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// A check service that can't be reached is logged at the start, before any request, and `/readyz` is 503 until it
/// can be reached.
#[test]
fn readyz_waits_for_the_check_service() {
    let check = v4([127, 0, 0, 1], 9191);
    let url = format!("--check=grpc://{check}");
    let rig = InterceptRig::new(&[&url, "--admin=127.0.0.1:9300", LONG_CHECK_TIMEOUT]);
    let says = |what: &str| {
        rig.proxy
            .wait_line(what, |line| line.contains(what).then_some(()));
    };
    says("can't be asked: ");
    says("requests are denied until it can");
    let ready = rig.ask_admin("/readyz", &[]);
    assert!(
        ready.contains("the check service can't be asked") && ready.ends_with("503"),
        "{ready}"
    );
    assert_eq!(rig.ask_admin("/healthz", &[]), "ok\n200");
    let _service = rig.lab.balancer.enter(|| Service::ext_authz(check));
    says("can be asked now");
    wait_for("readiness", || {
        (rig.ask_admin("/readyz", &[]) == "ready\n200").then_some(())
    });
}

#[test]
fn chromium_shows_decisions_and_certificates() {
    let rig = InterceptRig::new(&["--admin=127.0.0.1:9300"]);
    assert_eq!(rig.curl_status(&["https://a.test/passes"]), 404);
    assert_eq!(rig.curl_status(&["http://private.test/refused"]), 403);
    let shown = [
        "peername intercept",
        "ready",
        "unchecked\t",
        "refused\t1",
        "Certificates issued\n1\n",
    ];
    wait_page_shows(&rig.lab.balancer, &shown);
}

/// `-q` shows what was refused, and nothing else.
#[test]
fn quiet_logs_show_denials() {
    let rig = InterceptRig::new(&["-q"]);
    assert_eq!(rig.curl_status(&["https://a.test/passes"]), 404);
    assert_eq!(
        rig.curl_status(&["http://private.test/is-not-let-through"]),
        403
    );
    let line = &rig.wait_audit_lines("/is-not-let-through", 1)[0];
    assert_eq!(
        (&line["decision"], &line["level"]),
        (&"refused".into(), &"WARN".into())
    );
    let log = rig.proxy.log();
    assert!(
        !log.contains("/passes") && !log.contains("listening"),
        "{log}"
    );
}

/// A web page can't read the endpoint by a name of its own that resolves to the endpoint's address (DNS rebinding).
#[test]
fn admin_endpoint_answers_to_its_own_names_only() {
    for (args, own) in [
        (&["--admin=127.0.0.1:9300"][..], None),
        (
            &["--admin=127.0.0.1:9300", "--admin-host=proxy.example"],
            Some("proxy.example"),
        ),
    ] {
        let rig = InterceptRig::new(args);
        let with = |header: &str| rig.ask_admin("/healthz", &["-H", header]);
        for header in [
            "X: y",
            "Host:",
            "Host: localhost:9300",
            "Host: [::1]",
            "Host: 192.0.2.7:80",
        ] {
            assert_eq!(with(header), "ok\n200", "{header}");
        }
        for header in [
            "Host: rebound.example:9300",
            "Host: 127.0.0.1.example",
            "Host: localhost.example",
            "Origin: http://rebound.example",
            "Origin: null",
            "Origin: https://127.0.0.1",
        ] {
            assert!(with(header).ends_with("421"), "{header}: {}", with(header));
        }
        let host = own.map_or_else(|| "X: y".to_owned(), |name| format!("Host: {name}:9300"));
        assert_eq!(with(&host), "ok\n200");
    }
}
