//! Programs that replace a file or a socket that the jail uses outside.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::PathBuf;

use crate::harness::lab::{
    Process, assert_contains, assert_fails, stderr_text, stdout_text, wait_until,
};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

/// A directory that the user of the jail may write.
fn make_dir(rig: &JailRig, user: User, name: &str) -> PathBuf {
    let dir = rig.scratch().path(&format!("{name}-{user:?}"));
    fs::create_dir(&dir).expect("mkdir");
    let owner = (user == User::Nobody).then_some(65_534);
    chown(&dir, owner, owner).expect("chown");
    dir
}

/// A check service on a Unix socket: its arguments are the path, and the status of each answer.
const SERVICE: &str = r#"
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
server.listen(16)
while True:
    client, _ = server.accept()
    if client.recv(65536):
        client.sendall(b"HTTP/1.1 %s X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % sys.argv[2].encode())
    client.close()
"#;

/// The program may bind a Unix socket, and rename it to the path of the check service. The jail does not ask that socket.
#[test]
fn program_cannot_answer_checks_itself() {
    let rig = JailRig::new();
    let service = rig.scratch().write("service.py", SERVICE);
    for user in USERS {
        let dir = make_dir(&rig, user, "check");
        let socket = format!("{}/check.sock", dir.display());
        let check = format!("--check=http:unix:{socket}:/");
        let dir = dir.display();
        let script = format!(
            "python3 {service} {dir}/mine.sock 200 & while [ ! -e {dir}/mine.sock ]; do sleep 0.1; done; curl -s -o /dev/null -w '%{{http_code}} ' http://a.test/echo
             mv {dir}/mine.sock {socket}; curl -s -o /dev/null -w %{{http_code}} http://a.test/echo; kill $!"
        );
        // Without a service, the first socket at the path would be the program's.
        let missing = rig.run(user, &[&check], &script);
        assert_fails(&missing, 125, &["check.sock", "start the service first"]);

        let denying = [&service, &socket, "403"];
        let _service = Process::start(&rig.stage.lab.balancer, "python3", &denying);
        wait_until("the socket", || {
            fs::exists(&socket).is_ok_and(|exists| exists)
        });
        let printed = rig.run(user, &[&check], &script);
        assert_eq!(stdout_text(&printed), "403 403", "{printed:?}");
    }
}

/// The path of the check service is a symbolic link, which the program can replace, although it can't replace the socket
/// itself. The jail keeps to the first socket. A link to a socket that does not exist is an error, since the program could bind
/// that socket.
#[test]
fn link_to_a_check_service_is_followed_once() {
    let rig = JailRig::new();
    let service = rig.scratch().write("service.py", SERVICE);
    let dir = make_dir(&rig, User::Nobody, "link");
    // Not below a directory that others may write, such as /tmp.
    let fixed = RemovedDir::create(format!("/run/peername-check-{}", std::process::id()));
    let socket = fixed.0.join("check.sock").display().to_string();
    let denying = [&service, &socket, "403"];
    let _service = Process::start(&rig.stage.lab.balancer, "python3", &denying);
    wait_until("the socket", || {
        fs::exists(&socket).is_ok_and(|exists| exists)
    });
    let link = dir.join("check.sock");
    symlink(&socket, &link).expect("symlink");
    let check = format!("--check=http:unix:{}:/", link.display());
    let dir_text = dir.display();
    let script = format!(
        "python3 {service} {dir_text}/mine.sock 200 & while [ ! -e {dir_text}/mine.sock ]; do sleep 0.1; done
         mv -T {dir_text}/mine.sock {dir_text}/check.sock; curl -s -o /dev/null -w %{{http_code}} http://a.test/echo; kill $!"
    );
    let printed = rig.run(User::Nobody, &[&check], &script);
    assert_eq!(stdout_text(&printed), "403", "{printed:?}");

    let dangling = fixed.0.join("later.sock");
    symlink(dir.join("later.sock"), &dangling).expect("symlink");
    let check = format!("--check=http:unix:{}:/", dangling.display());
    let refused = rig.run(User::Nobody, &[&check], "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
}

/// A directory of root's that is removed at the end.
struct RemovedDir(PathBuf);

impl RemovedDir {
    fn create(path: String) -> Self {
        fs::create_dir(&path).expect("mkdir");
        Self(path.into())
    }
}

impl Drop for RemovedDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process that writes the learned list can access hidden files. If the program puts a link to one in the place of the
/// list, the file is not written.
#[test]
fn list_does_not_lead_to_a_hidden_file() {
    let rig = JailRig::new();
    for user in USERS {
        let dir = make_dir(&rig, user, "learn");
        let (list, key) = (dir.join("list"), dir.join("key"));
        let owner = (user == User::Nobody).then_some(65_534);
        fs::write(&key, "sk-live-51abc\n").expect("write");
        chown(&key, owner, owner).expect("chown");
        let (list_text, key_text) = (list.display().to_string(), key.display().to_string());
        let inject = format!("--inject=api.test=X-Api-Key@{key_text}");
        let options = ["--learn", &list_text, &inject];
        let script = format!(
            "ln -sfn {key_text} {list_text}; curl -s -o /dev/null http://b.test/echo; cat {list_text}"
        );
        let output = rig.run(user, &options, &script);
        assert!(!stdout_text(&output).contains("sk-live"), "{output:?}");
        assert_contains(&stderr_text(&output), &["a symbolic link"]);
        assert_eq!(
            fs::read_to_string(&key).expect("the key"),
            "sk-live-51abc\n"
        );

        // A link that an earlier run has left.
        fs::remove_file(&list).expect("unlink");
        symlink(&key, &list).expect("symlink");
        let refused = rig.run(user, &options, "true");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert_eq!(
            fs::read_to_string(&key).expect("the key"),
            "sk-live-51abc\n"
        );
    }
}
