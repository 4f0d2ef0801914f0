//! Access lists and secrets in a jail.

use crate::harness::lab::assert_contains;
use crate::harness::peername::words;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use crate::harness::rig::jail::{JailRig, USERS, User};

const CURL: &str = "curl -sS --max-time 10 -o /dev/null -w '%{http_code} '";

#[test]
fn access_lists_decide_on_what_a_program_requests() {
    let rig = JailRig::new();
    let options = words(
        "-q --deny=a.test/slow --allow=a.test --allow-tcp=b.test:8081 --allow-tcp=a.test:8081",
    );
    for user in USERS {
        let script = format!(
            "{CURL} https://a.test/echo; {CURL} https://a.test/slow; {CURL} https://a.test/x/../slow --path-as-is
             {CURL} http://b.test/echo; {CURL} http://a.test:8081/echo; {CURL} http://b.test:8081/echo 2>/dev/null; true"
        );
        // Of tunnels only the one whose host is allowed without regard to a path would be relayed.
        let statuses = rig.succeeds(user, &options, &script);
        assert_eq!(statuses, "200 403 403 403 000 000 ", "{user:?}");
        let options = ["-q", "--allow=a.test", "--allow-tcp=a.test:8081"];
        let script = format!("{CURL} http://a.test:8081/echo");
        assert_eq!(rig.succeeds(user, &options, &script), "200 ", "{user:?}");
    }
}

/// The origin gets the secret, and the program can't read its file.
#[test]
fn program_does_not_hold_an_injected_secret() {
    let rig = JailRig::new();
    let file = rig.scratch().write("secret", "treasure\n");
    for user in USERS {
        // The same user may read it outside.
        let owner = if user == User::Nobody { 65_534 } else { 0 };
        chown(&file, Some(owner), None).expect("chown");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("chmod");
        assert!(
            rig.run_outside(user, &format!("grep -q treasure {file}"))
                .status
                .success()
        );
        let inject = format!("--inject=a.test=X-Mine@{file}");
        let script = format!("curl -sS https://a.test/echo; cat {file}; env; true");
        let printed = rig.succeeds(user, &["-q", "--allow=a.test", &inject], &script);
        assert!(printed.contains(" x=treasure "), "{user:?}: {printed}");
        assert_eq!(
            printed.matches("treasure").count(),
            1,
            "{user:?}: {printed}"
        );
    }
}

/// The credentials of an outer proxy are in no command line that the program can read.
#[test]
fn credentials_of_the_outer_proxy_are_not_shown() {
    let rig = JailRig::new();
    let option = "--upstream-proxy=http://user:SECRET@10.81.0.1:3128";
    let script = format!("pgrep -a -f '{}'", rig.interceptor_pattern());
    for user in USERS {
        let printed = rig.succeeds(user, &["-q", option], &script);
        assert_contains(&printed, &["http://***********@10.81.0.1:3128"]);
        assert!(!printed.contains("SECRET"), "{printed}");
    }
}
