//! The program runs as if it had been started directly: exit code, signals, terminal, standard streams, environment.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::harness::lab::{
    assert_contains, assert_fails, assert_prints, assert_succeeds, stderr_text, stdout_text,
    wait_for, wait_until,
};
use crate::harness::peername::{USERS, User, words};
use crate::harness::rig::jail::JailRig;

#[test]
fn exit_code_is_the_programs() {
    let rig = JailRig::new();
    let code = |program: &[&str]| rig.run_program(User::Nobody, &[], program).status.code();
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 42"]), Some(42));
    assert_eq!(code(&["/nonexistent"]), Some(127));
    assert_eq!(code(&["/etc/passwd"]), Some(126));
    // The rig runs the jail under timeout(1), which ends by the signal that has killed its program.
    let killed = rig.run_program(User::Nobody, &[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15), "{killed:?}");
}

#[test]
fn signals_reach_the_program_and_the_interceptor_ends_with_it() {
    let rig = JailRig::new();
    let script = "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut program = rig.start(User::Nobody, &[], &["sh", "-c", script]);
    program.wait_printed("ready");
    program.signal(Signal::USR1);
    program.assert_exits(3);
    program.wait_printed("caught");
    super::wait_interceptor_exit(&rig);
}

/// The interceptor ends with the program, so what the program leaves behind has no network.
#[test]
fn processes_left_behind_have_no_network() {
    let rig = JailRig::new();
    let file = rig.scratch().path_text("left");
    let interceptor = rig.interceptor_pattern();
    let background = format!(
        "curl -sS -m 5 http://a.test/echo >{file}; while pgrep -f '{interceptor}' >/dev/null; do sleep 0.05; done; \
         curl -sS -m 5 http://a.test/echo >>{file}; echo code $? >>{file}"
    );
    let script =
        format!("({background}) >/dev/null 2>&1 & until [ -s {file} ]; do sleep 0.05; done");
    rig.succeeds(User::Nobody, &[], &script);
    let log = wait_for("the second request", || {
        let log = rig.scratch().read("left");
        log.contains("code").then_some(log)
    });
    assert!(
        log.starts_with("GET a.test ") && log.matches("GET").count() == 1,
        "{log}"
    );
    assert!(!log.contains("code 0"), "{log}");
}

/// The jail's mediator answers system calls of the program by a seccomp listener. After the mediator has ended, a process that
/// got a seccomp listener of its own could continue such calls, for example connect(2) to a socket outside.
#[test]
fn processes_left_behind_get_no_seccomp_listener() {
    let rig = JailRig::new();
    let program = rig.scratch().write("own_listener.py", OWN_LISTENER);
    for user in USERS {
        let answer = format!("answer to {user:?}");
        let file = rig.scratch().path_text(&answer);
        let script = format!("/usr/bin/python3 {program} '{file}' >/dev/null 2>&1");
        rig.succeeds(user, &["--allow=any"], &script);
        let answer = wait_for("the answer", || {
            Some(rig.scratch().read(&answer)).filter(|answer| answer.ends_with("\n"))
        });
        assert_eq!(answer, "EBUSY\n");
    }
}

#[test]
fn killed_program_is_reported_as_killed() {
    let rig = JailRig::new();
    let mut program = rig.start(User::Root, &[], &["sh", "-c", "echo ready; exec sleep 60"]);
    program.wait_printed("ready");
    program.signal(Signal::KILL);
    program.assert_killed_by(Signal::KILL);
}

#[test]
fn standard_streams_are_the_programs_own() {
    let rig = JailRig::new();
    // 1 GB through both pipes: the count shows whether a byte was lost.
    let jail = rig.scratch().path_text("peername");
    let script = format!("head -c 1000000000 /dev/zero | {jail} jail -- cat | wc -c");
    let output = rig.run_outside(User::Nobody, &script);
    assert_eq!(stdout_text(&output).trim(), "1000000000", "{output:?}");
}

/// An interactive shell in a jail has the foreground of its terminal. Jobs of the shell can be stopped and continued.
#[test]
fn job_control_works_in_a_terminal() {
    let rig = JailRig::new();
    let script = rig.scratch().write("terminal.py", TERMINAL);
    let jail = [
        &rig.scratch().path_text("peername"),
        "jail",
        "--",
        "bash",
        "--norc",
        "-i",
    ]
    .map(|word| format!("'{word}'"));
    let output = rig.run_outside(
        User::Nobody,
        &format!("/usr/bin/python3 {script} {}", jail.join(" ")),
    );
    let text = stdout_text(&output);
    assert!(text.contains("done 0"), "{text}\n{output:?}");
    assert!(!text.contains("no job control"), "{text}");
}

/// The program keeps its user, its working directory and its variables. Only variables of proxies and of name resolution are
/// removed, because they have no use in a jail.
#[test]
fn user_directory_and_variables_are_kept() {
    let rig = JailRig::new();
    for (user, id) in [(User::Root, "0"), (User::Nobody, "65534")] {
        let jail = rig.scratch().path_text("peername");
        let script = format!(
            "cd /var && FOO=bar https_proxy=http://192.0.2.1:3128 LOCALDOMAIN=corp.test {jail} jail -- \
             sh -c 'id -u; pwd; echo $FOO; echo \"${{https_proxy-none}} ${{LOCALDOMAIN-none}}\"'"
        );
        let output = rig.run_outside(user, &script);
        let printed = stdout_text(&output);
        assert_eq!(
            printed,
            format!("{id}\n/var\nbar\nnone none\n"),
            "{output:?}"
        );
        assert_contains(
            &stderr_text(&output),
            &["https_proxy is not used in a jail", "--upstream-proxy URL"],
        );
    }
}

/// Package managers give up root for another user while they download.
#[test]
fn root_may_become_another_user() {
    let rig = JailRig::new();
    let script = "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'id -u; curl -sS https://a.test/echo'";
    let printed = rig.succeeds(User::Root, &[], script);
    assert!(printed.starts_with("65534\nGET a.test "), "{printed}");
}

/// On some kernels the owner of a network namespace can make interfaces in the networks of other processes.
#[test]
fn network_namespace_of_the_programs_own_needs_allow_mounts() {
    let rig = JailRig::new();
    let program = words("unshare --user --map-root-user --net ip link");
    for user in USERS {
        let run = |options: &[&str]| rig.run_program(user, options, &program);
        assert_fails(&run(&[]), 1, &["unshare failed: Operation not permitted"]);
        assert_succeeds(&run(&["--allow-mounts"]));
    }
}

/// TCP Fast Open connects without connect(2), so a refusal could not be reported. Calls for it fail, and programs connect
/// without it.
#[test]
fn fast_open_is_not_supported() {
    let rig = JailRig::new();
    let script = rig.scratch().write("fast_open.py", FAST_OPEN);
    let script = format!("/usr/bin/python3 {script}; curl -sS --tcp-fastopen http://a.test/echo");
    for user in USERS {
        let printed = rig.succeeds(user, &[], &script);
        let answer = printed.strip_prefix("EOPNOTSUPP\nEOPNOTSUPP\nEOPNOTSUPP\n");
        assert!(
            answer.is_some_and(|text| text.starts_with("GET a.test ")),
            "{printed}"
        );
    }
}

#[test]
fn options_that_can_not_be_applied_are_wrong_usage() {
    let rig = JailRig::new();
    let code = |options: &[&str]| rig.run(User::Nobody, options, "true").status.code();
    assert_eq!(code(&["--ca", "/nonexistent"]), Some(2));
    assert_eq!(code(&["--hide", "/nonexistent"]), Some(2));
    assert_eq!(code(&["--log", "/nonexistent/log"]), Some(2));
    assert_eq!(code(&["--extra-ca", "/nonexistent"]), Some(2));
    assert_eq!(code(&["--allow-unix", "/etc/hosts"]), Some(2));
    assert_eq!(code(&["--listen", "127.0.0.1:1"]), Some(2));
    assert_eq!(code(&["--port", "53"]), Some(2));
    assert_eq!(code(&["--allow-tcp", "a.test:53"]), Some(2));
    assert_eq!(code(&["--check-cache=1s"]), Some(2));
}

/// On a host that trusts no certificate authority every request would fail, so the program is not started.
#[test]
fn program_is_not_started_where_no_origin_could_be_verified() {
    let rig = JailRig::new();
    let peername = rig.scratch().path_text("peername");
    let script = format!(
        "SSL_CERT_FILE=/nonexistent SSL_CERT_DIR=/nonexistent {peername} jail --allow a.test -- echo started"
    );
    let output = rig.run_outside(User::Nobody, &script);
    assert_fails(
        &output,
        125,
        &["trusts no certificate authority", "--extra-ca"],
    );
    assert_prints(&output, "");
}

/// SSL_CERT_DIR may name a folder of archives by mistake. A line of such a file has kilobytes, which the error does not print.
#[test]
fn binary_files_in_place_of_certificates_are_described_briefly() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let dir = rig.scratch().path_text("binary");
    std::fs::create_dir(&dir).expect("mkdir(2)");
    for number in 0..20 {
        let line = format!("-----BEGIN {}\n", "x".repeat(5000));
        std::fs::write(format!("{dir}/{number}.pem"), line).expect("write(2)");
    }
    let run = |variables: &str, options: &str, code: i32, expected: &[&str]| {
        let script = format!("{variables} {jail} jail --allow a.test {options} -- true");
        let output = rig.run_outside(User::Nobody, &script);
        assert_fails(&output, code, expected);
        assert!(output.stderr.len() < 1000, "{output:?}");
    };
    let no_roots = format!("SSL_CERT_FILE={dir}/0.pem SSL_CERT_DIR={dir}");
    let section = "begins as a section of PEM does";
    run(&no_roots, "", 125, &[section, "more errors"]);
    let extra = format!("--extra-ca {dir}/0.pem");
    run("", &extra, 2, &["--extra-ca", section]);
}

/// An interceptor that does not start removes the jail's directory while the jail still fills it. The failures that follow are
/// not reported, but only the interceptor's error.
#[test]
fn only_the_cause_is_reported_if_the_interceptor_does_not_start() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let broken = rig.scratch().path_text("broken.pem");
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(&broken, pem).expect("write(2)");
    let no_roots = rig.scratch().path_text("no-roots");
    std::fs::create_dir(&no_roots).expect("mkdir(2)");
    for _ in 0..5 {
        let script = format!(
            "SSL_CERT_FILE={broken} SSL_CERT_DIR={no_roots} {jail} jail --allow a.test -- echo started"
        );
        let output = rig.run_outside(User::Nobody, &script);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert_prints(&output, "");
        assert_eq!(
            stderr_text(&output),
            "peername: the interceptor: this host trusts no certificate authority, so that no origin could be verified: install \
             ca-certificates, or give --extra-ca FILE\n\
             peername: the interceptor did not start\n"
        );
    }
}

/// Where user namespaces are forbidden, the error names the setting.
#[test]
fn forbidden_user_namespaces_are_explained() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let script = format!(
        "unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces; exec {jail} jail -- true'"
    );
    let output = rig.run_outside(User::Nobody, &script);
    assert_fails(&output, 125, &["user.max_user_namespaces is 0", "sysctl"]);
}

#[test]
fn jail_leaves_the_host_unchanged() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    for user in USERS {
        let temporary = rig.scratch().path_text(&format!("temporary-{user:?}"));
        std::fs::create_dir(&temporary).expect("a directory");
        std::fs::set_permissions(&temporary, Permissions::from_mode(0o777)).expect("its mode");
        let script = format!(
            "state() {{ cat /proc/self/mountinfo /proc/sys/net/ipv4/ip_unprivileged_port_start; ip rule; ip route show table all; \
             cat /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; }}; \
             before=$(state); TMPDIR={temporary} {jail} jail -q -- true; echo $?; \
             test \"$(state)\" = \"$before\"; echo $?"
        );
        assert_prints(&rig.run_outside(user, &script), "0\n0\n");
        // The interceptor's supervisor removes the jail's directory after the program has exited.
        wait_until("an empty directory", || {
            let left = std::fs::read_dir(&temporary).expect("the directory");
            left.count() == 0
        });
    }
}

const TERMINAL: &str = include_str!("process/terminal.py");
const FAST_OPEN: &str = include_str!("process/fast_open.py");
const OWN_LISTENER: &str = include_str!("process/own_listener.py");
