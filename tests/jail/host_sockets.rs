//! Unix sockets of the host (`--allow-unix`), and lookups in automounted directories.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::harness::lab::{
    Process, assert_contains, assert_fails, stderr_text, stdout_text, wait_for, wait_until,
};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

/// Starts a server of the host on a Unix socket, which sends `served` to each client.
fn start_unix_server(rig: &JailRig, path: &str) -> Process {
    let listen = format!("UNIX-LISTEN:{path},fork,mode=777");
    let args = [&listen, "SYSTEM:echo served"];
    let server = Process::start(&rig.stage.lab.balancer, "socat", &args);
    wait_until("the socket", || Path::new(path).exists());
    server
}

/// A Unix socket of the host is out of reach, unless it or its directory is listed.
#[test]
fn unix_socket_is_reachable_on_request_only() {
    let rig = JailRig::new();
    let path = rig.scratch().path_text("service");
    let _service = start_unix_server(&rig, &path);
    let script = format!("socat -u UNIX-CONNECT:{path} -");
    for user in USERS {
        let refused = rig.run(user, &[], &script);
        assert!(
            !refused.status.success() && refused.stdout.is_empty(),
            "{refused:?}"
        );
        for allowed in [&path, &rig.scratch().path_text("")] {
            let printed = rig.succeeds(user, &["--allow-unix", allowed], &script);
            assert_eq!(printed, "served\n", "{allowed}");
        }
    }
}

/// The jail reports a refused Unix socket only if a variable names it: programs try many others in vain.
#[test]
fn refused_socket_that_a_variable_names_has_a_line() {
    let rig = JailRig::new();
    let paths = ["agent", "engine", "other"].map(|name| rig.scratch().path_text(name));
    let [agent, engine, other] = &paths;
    let _services = paths.each_ref().map(|path| start_unix_server(&rig, path));
    let variables = format!("SSH_AUTH_SOCK={agent} DOCKER_HOST=unix://{engine}");
    let jail = rig.scratch().path_text("peername");
    for (option, count) in [("--deny=b.test", 2), ("-q", 0)] {
        let script = format!(
            "{variables} {jail} jail --allow=a.test {option} -- sh -c '
                for path in {agent} {agent} {engine} {other}; do socat -u UNIX-CONNECT:$path - 2>/dev/null; done; true'"
        );
        let errors = stderr_text(&rig.run_outside(User::Nobody, &script));
        let expected = [
            format!(
                "peername: refused: the Unix socket \"{agent}\" of SSH_AUTH_SOCK: --allow-unix \"$SSH_AUTH_SOCK\" allows it"
            ),
            format!(
                "peername: refused: the Unix socket \"{engine}\" of DOCKER_HOST: --allow-unix '{engine}' allows it"
            ),
        ];
        let mut lines: Vec<_> = errors.lines().collect();
        lines.sort_unstable_by_key(|line| !line.contains("SSH_AUTH_SOCK"));
        assert_eq!(lines, expected[..count], "{option}: {errors}");
    }
}

/// The path of an agent's socket is another one after each login.
#[test]
fn learned_list_names_the_variable_of_an_allowed_socket() {
    let rig = JailRig::new();
    let [agent, other, list] = ["agent", "other", "list"].map(|name| rig.scratch().path_text(name));
    let _services = [&agent, &other].map(|path| start_unix_server(&rig, path));
    let jail = rig.scratch().path_text("peername");
    let output = rig.run_outside(
        User::Root,
        &format!(
            "SSH_AUTH_SOCK={agent} {jail} jail --learn {list} --allow-unix {agent} --allow-unix {other} -- true"
        ),
    );
    assert!(output.status.success(), "{output:?}");
    let options = format!(" --allow-unix \"$SSH_AUTH_SOCK\" --allow-unix {other} -- true\n");
    assert_contains(&rig.scratch().read("list"), &[&options]);
}

/// `--allow-unix` allows the socket file itself, whatever path leads there.
#[test]
fn unix_socket_is_allowed_by_any_path_that_leads_to_it() {
    let rig = JailRig::new();
    let (dir, link) = (
        rig.scratch().path_text("run"),
        rig.scratch().path_text("var-run"),
    );
    fs::create_dir(&dir).expect("a directory");
    symlink(&dir, &link).expect("a link");
    let _service = start_unix_server(&rig, &format!("{dir}/service"));
    let script = format!("socat -u UNIX-CONNECT:{dir}/service -");
    for allowed in [&link, &format!("{link}/service")] {
        let printed = rig.succeeds(User::Nobody, &["--allow-unix", allowed], &script);
        assert_eq!(printed, "served\n", "{allowed}");
    }
    let missing = rig.run(User::Nobody, &["--allow-unix", "/nonexistent"], "true");
    assert_fails(
        &missing,
        2,
        &["--allow-unix /nonexistent: no such file; `ss -xl` lists the sockets"],
    );
}

/// The program could move other sockets to a listed directory that it may write.
#[test]
fn socket_that_is_moved_to_a_listed_directory_is_refused() {
    let rig = JailRig::new();
    let [shared, other] = ["shared", "other"].map(|name| {
        let path = rig.scratch().path(name);
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod(2)");
        path
    });
    let listeners = [shared.join("listed"), other.join("unlisted")].map(|path| {
        let listener = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod(2)");
        listener
    });
    let script = format!(
        "connect() {{ socat -u OPEN:/dev/null UNIX-CONNECT:$1 2>/dev/null && echo connected || echo refused; }}; \
         connect {shared}/listed; mv {other}/unlisted {shared}/moved; connect {shared}/moved; \
         mv {shared}/listed {other}/away; connect {other}/away",
        shared = shared.display(),
        other = other.display()
    );
    let option = format!("--allow-unix={}", shared.display());
    let printed = rig.succeeds(User::Nobody, &["-v", &option], &script);
    assert_eq!(printed, "connected\nrefused\nconnected\n");
    drop(listeners);
}

/// A lookup below an autofs mount sends a request to a program outside. In a jail a lookup sees only what is mounted there
/// already, and sends none. A jail starts also for a user who can't search the path of the mount.
#[test]
fn automounter_is_not_asked() {
    let rig = JailRig::new();
    let script = rig.scratch().write("autofs.py", AUTOFS);
    let point = rig.scratch().path_text("above/net");
    fs::create_dir_all(&point).expect("a directory");
    let jail = rig.scratch().path_text("peername");
    let command = format!("unshare --mount /usr/bin/python3 {script} {point} {jail}");
    let output = rig.run_outside(User::Root, &command);
    let printed = stdout_text(&output);
    assert_eq!(
        printed, "outside: asked for leak\njail: ['mounted']\nhidden: []\nout of reach\n",
        "{output:?}"
    );
}

/// A service that starts again binds another socket at its path. The socket is reached if only root can replace what is at the
/// listed path; the owner of a directory can, whatever its mode is.
#[test]
fn socket_that_is_bound_later_is_reached_at_a_path_of_root() {
    let rig = JailRig::new();
    for (name, owner, reached) in [("root", 0, "connected"), ("own", 1, "refused")] {
        // Not below /tmp, which every user may write.
        let dir = format!("/run/peername-test-{}-{name}", std::process::id());
        fs::create_dir(&dir).expect("a directory");
        fs::set_permissions(&dir, Permissions::from_mode(0o555)).expect("chmod(2)");
        chown(&dir, Some(owner), Some(owner)).expect("chown(2)");
        let path = format!("{dir}/service");
        let script = format!(
            "echo ready; until [ -e {path} ]; do sleep 0.05; done; sleep 0.2; \
             socat -u OPEN:/dev/null UNIX-CONNECT:{path} 2>/dev/null && echo connected || echo refused"
        );
        let option = format!("--allow-unix={dir}");
        let jail = rig.scratch().path_text("peername");
        // Not user 65534, to which files of unknown owners seem to belong.
        let user = "setpriv --reuid=1 --regid=1 --clear-groups --inh-caps=-all --bounding-set=-all";
        let user: Vec<&str> = user.split(' ').collect();
        let command = [&jail, "jail", "-q", &option, "--", "sh", "-c", &script];
        let program = rig.start_outside(User::Root, &[&user[..], &command].concat());
        program.wait_printed("ready");
        let listener = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod(2)");
        let outcome = wait_for("the outcome", || {
            let log = program.log();
            log.lines().nth(1).map(str::to_owned)
        });
        drop(listener);
        fs::remove_dir_all(Path::new(&dir)).expect("unlink(2)");
        assert_eq!(outcome, reached, "{name}");
    }
}

/// Mounts autofs at the path in the first argument, and a file system at `mounted` below it. Runs three jails by the binary in
/// the second argument; the last is of another user, who can't search the directory above the mount.
const AUTOFS: &str = include_str!("host_sockets/autofs.py");
