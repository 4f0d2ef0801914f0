//! Ways out of the jail, each of which must fail: the attempt reports that it was stopped, and no process outside notices
//! it. As a control, the same attempts succeed outside of a jail where this kernel allows them.
//!
//! The list is the table of docs/jail-attempts.md.

mod attempts;
mod httpjail;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::harness::lab::{Process, stdout_text, wait_until};
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;
use attempts::{Attempt, Control, PRELUDE, Rules};

/// Processes outside that print a line for every contact: one on the origin's host, and one on the jail's host, as the jail's
/// user.
struct Canaries {
    remote: Process,
    local: Process,
}

impl Canaries {
    fn start(rig: &JailRig, user: User) -> Self {
        let remote = rig.scratch().write("remote.py", REMOTE);
        let remote = Process::start(&rig.stage.lab.server, "/usr/bin/python3", &["-u", &remote]);
        let local = rig.scratch().write("local.py", LOCAL);
        let path = rig.scratch().path_text(&format!("canary-{user:?}"));
        let local = rig.start_outside(user, &["/usr/bin/python3", "-u", &local, &path]);
        let canaries = Self { remote, local };
        wait_until("the canaries", || {
            let ready = |process: &Process| process.log().contains("ready");
            ready(&canaries.remote) && ready(&canaries.local)
        });
        canaries
    }

    /// The contacts that were reported so far.
    fn contacts(&self) -> Vec<String> {
        let logs = [self.remote.log(), self.local.log()];
        let lines = logs.iter().flat_map(|log| log.lines());
        lines
            .filter(|line| *line != "ready")
            .map(str::to_owned)
            .collect()
    }
}

/// Removes the message queue and the shared memory, which outlive the process.
impl Drop for Canaries {
    fn drop(&mut self) {
        let script = format!(
            "import ctypes; ctypes.CDLL('librt.so.1').mq_unlink(b'/peername-canary-{0}'); \
             libc = ctypes.CDLL(None); libc.shmctl(libc.shmget(0x70000000 + {0}, 0, 0), 0, None)",
            self.local.pid()
        );
        let removed = Command::new("/usr/bin/python3")
            .args(["-c", &script])
            .status();
        assert!(removed.is_ok_and(|status| status.success()));
    }
}

/// A jail to get out of: the canaries outside, and the files and the check service that rules of attempts need.
struct BypassRig {
    rig: JailRig,
    canaries: Canaries,
    user: User,
    /// The option that names the check service.
    check: String,
    _check: Process,
}

impl BypassRig {
    fn new(user: User) -> Self {
        let rig = JailRig::new();
        for hidden in ["hidden", "open/hidden", "open/log"] {
            std::fs::create_dir_all(rig.scratch().path(hidden)).expect("a directory");
            rig.scratch().write(&format!("{hidden}/file"), "");
        }
        rig.scratch().write("token", "SECRET\n");
        for writable in ["open", "open/hidden", "open/log"] {
            let mode = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(rig.scratch().path(writable), mode).expect("chmod(2)");
        }
        let (_check, check) = rig.start_check(&["a.test"]);
        let canaries = Canaries::start(&rig, user);
        Self {
            rig,
            canaries,
            user,
            check,
            _check,
        }
    }

    fn script(&self, attempt: &Attempt) -> String {
        let python = format!("{PRELUDE}\n{}", attempt.python);
        let name = format!(
            "attempt-{}.py",
            attempt
                .name
                .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
        );
        let path = self.rig.scratch().write(&name, &python);
        let canary = self
            .rig
            .scratch()
            .path_text(&format!("canary-{:?}", self.user));
        let victim = self.canaries.local.pid();
        format!("exec env CANARY={canary} VICTIM={victim} timeout 20 /usr/bin/python3 -u {path}")
    }

    fn run_inside(&self, attempt: &Attempt) -> Output {
        let hidden = ["hidden", "open/hidden"].map(|path| {
            let path = self.rig.scratch().path_text(path);
            format!("--hide={path}")
        });
        let inject = format!(
            "--inject=a.test=X-Mine@{}",
            self.rig.scratch().path_text("token")
        );
        let log = format!(
            "--log={}",
            self.rig.scratch().path_text("open/log/audit.log")
        );
        let rules: &[&str] = match attempt.rules {
            Rules::Check => &[&self.check],
            Rules::Paths => &[
                "--deny=DELETE a.test",
                "--deny=a.test/none",
                "--allow=a.test",
            ],
            Rules::Secrets => &["--allow=a.test", "--allow=h1.test", &inject],
            Rules::Any => &["--allow=any", "--allow=any:7001"],
            Rules::Logged => &["--allow=a.test", &log],
        };
        let options = [rules, &[&hidden[0], &hidden[1]]].concat();
        let script = format!("export PEERNAME_JAIL_TEST=1; {}", self.script(attempt));
        self.rig.run(self.user, &options, &script)
    }

    /// Runs the attempt in a jail; returns its output if it got out, or if it reports neither that it was stopped nor that it
    /// was skipped. Prints why it was skipped.
    fn failure(&self, attempt: &Attempt) -> Option<String> {
        let contacts_before = self.canaries.contacts().len();
        let output = self.run_inside(attempt);
        let text = stdout_text(&output);
        let is_closed = text.contains("closed") || text.contains("skipped");
        let contacts = self.canaries.contacts().split_off(contacts_before);
        let name = attempt.name;
        for line in text.lines().filter(|line| line.starts_with("skipped")) {
            eprintln!("{name}: {line}");
        }
        (!is_closed || text.contains("OUT") || !contacts.is_empty())
            .then(|| format!("{name}: {contacts:?}: {output:?}"))
    }
}

#[test]
fn no_attempt_of_root_gets_out() {
    assert_nothing_gets_out(User::Root);
}

#[test]
fn no_attempt_of_an_ordinary_user_gets_out() {
    assert_nothing_gets_out(User::Nobody);
}

/// Runs every attempt in a jail.
#[track_caller]
fn assert_nothing_gets_out(user: User) {
    let bypass = BypassRig::new(user);
    let tried = attempts::all().filter(|attempt| attempt.applies_to(user));
    let got_out: Vec<_> = tried
        .filter_map(|attempt| bypass.failure(&attempt))
        .collect();
    assert!(got_out.is_empty(), "{got_out:#?}");
    // A canary may report a contact later than the attempt ends.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(bypass.canaries.contacts(), [""; 0]);
    let seen_by_origin = bypass.rig.scratch().read("access.log");
    let denied: Vec<_> = seen_by_origin
        .lines()
        .filter(|line| !is_allowed(line))
        .collect();
    assert!(denied.is_empty(), "{denied:#?}");
}

/// Whether the origin may see this request, a line `ADDRESS SCHEME HOST METHOD PATH …` of its log.
fn is_allowed(line: &str) -> bool {
    let host = line.split(' ').nth(2).unwrap_or_default();
    let is_denied = |part: &str| line.to_ascii_lowercase().contains(part);
    matches!(host, "a.test" | "h1.test") && !is_denied("none") && !is_denied("delete")
}

/// The control: every attempt that is marked as possible succeeds without a jail, so the tests above can fail.
#[test]
fn attempts_succeed_without_a_jail() {
    let bypass = BypassRig::new(User::Root);
    let controls = attempts::all()
        .filter(|attempt| matches!(attempt.control, Control::Succeeds | Control::Noticed));
    let failed = controls.filter_map(|attempt| {
        let contacts_before = bypass.canaries.contacts().len();
        let output = bypass.rig.run_outside(User::Root, &bypass.script(&attempt));
        // A canary may report a contact later than the attempt ends.
        let is_noticed = || {
            let reported = || bypass.canaries.contacts().len() > contacts_before;
            (0..50).any(|_| {
                reported() || {
                    thread::sleep(Duration::from_millis(100));
                    false
                }
            })
        };
        let succeeds = stdout_text(&output).contains("OUT")
            && (attempt.control == Control::Succeeds || is_noticed());
        (!succeeds).then_some((attempt.name, output))
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(
        bypass.canaries.contacts().len() > 10,
        "{:?}",
        bypass.canaries.contacts()
    );
}

/// The control of attempts at a secret: the origin echoes requests, so a request to it shows the secret.
#[test]
fn secret_is_seen_by_a_request_to_its_origin() {
    let attempt = Attempt {
        name: "a request to its origin",
        control: Control::NotTried,
        rules: Rules::Secrets,
        python: r#"judge(http("a.test", "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n", tls="a.test"), "SECRET")"#,
    };
    let output = BypassRig::new(User::Root).run_inside(&attempt);
    assert!(stdout_text(&output).contains("OUT"), "{output:?}");
}

#[test]
fn page_lists_every_attempt() {
    let page = include_str!("../../docs/jail-attempts.md");
    let (_, rest) = page
        .split_once("## Bypasses that were tried")
        .expect("the section");
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let listed: BTreeSet<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|name| *name != "attempt")
        .collect();
    let tried: BTreeSet<_> = attempts::all().map(|attempt| attempt.name).collect();
    assert_eq!(listed, tried);
    assert!(tried.len() >= 150);
}

/// TCP, UDP and ICMP on the origin's host, IPv4 and IPv6.
const REMOTE: &str = include_str!("bypasses/remote.py");

/// Unix sockets, TCP on loopback, shared memory, a message queue and a signal, on the jail's own host.
const LOCAL: &str = include_str!("bypasses/local.py");
