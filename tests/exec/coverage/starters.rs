//! Servers that cron and runit start with a fresh environment, and a 32-bit server.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Scratch, wait_until};
use crate::harness::rig::exec::{Libc, MODES, PRELOAD, ProgramRig, compiled_server, v2};

/// The real cron, on files of its own. It gives its jobs HOME, LOGNAME, SHELL and PATH, and nothing else.
#[test]
fn job_of_cron_sees_its_clients() {
    for libc in [Libc::Glibc, Libc::Static] {
        let script = CRON.replace("SERVER", &compiled_server(libc));
        let program =
            ProgramRig::with_mode(PRELOAD, &[], &["unshare", "--mount", "sh", "-c", &script]);
        assert_sees_its_clients(&program);
    }
}

/// runit is started as by Debian's /etc/runit/2. After a restart the service sees its clients, too.
#[test]
fn service_of_runit_sees_its_clients() {
    for run in ["exec SERVER", "exec chpst -u nobody env -i SERVER"] {
        let scratch = Scratch::new();
        let service = scratch.path("services/server");
        fs::create_dir_all(&service).expect("a directory");
        let run = run.replace("SERVER", &compiled_server(Libc::Glibc));
        let run = scratch.write(
            "services/server/run",
            &format!("#!/bin/sh\n{run} --accept=block\n"),
        );
        fs::set_permissions(run, Permissions::from_mode(0o755)).expect("a script to be run");
        let script = "env - PATH=$PATH runsvdir -P $0; exit $?";
        let mut program = ProgramRig::with_mode(
            PRELOAD,
            &[],
            &["sh", "-c", script, &scratch.path_text("services")],
        );
        assert_sees_its_clients(&program);
        let pid = || fs::read_to_string(service.join("supervise/pid")).unwrap_or_default();
        let first = pid();
        let restarted = Command::new("sv").arg("restart").arg(&service).output();
        assert!(restarted.expect("sv (make setup)").status.success());
        wait_until("the successor", || {
            let second = pid();
            second.len() > 1 && second != first
        });
        program.process = program.process.wait_listening(&[LISTEN_V4]);
        assert_sees_its_clients(&program);
    }
}

/// A shell starts a static 32-bit program, which uses no C library, in either mode. With `--mode preload` the shell has the
/// library.
#[cfg(target_arch = "x86_64")]
#[test]
fn child_of_32_bits_sees_its_clients() {
    let server = i386();
    for mode in MODES {
        for script in ["$0; exit $?", "env -i $0; exit $?"] {
            let program = ProgramRig::with_mode(mode, &[], &["sh", "-c", script, &server]);
            for _ in 0..4 {
                let client = fresh_client_v4();
                let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
                assert_eq!(
                    addresses(&conn.recv_to_end().0),
                    [client; 2],
                    "{mode} {script}"
                );
                program.assert_refused(b"hello");
            }
        }
    }
}

fn assert_sees_its_clients(program: &ProgramRig) {
    for _ in 0..3 {
        let client = fresh_client_v4();
        let request = [&v2(client)[..], b"hello"].concat();
        let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &request);
        let answer = conn.recv_text_to_end();
        let log = program.process.log();
        let seen = format!("accept {client} getpeername {client} ");
        assert!(answer.starts_with(&seen), "{client}: {answer}\n{log}");
        program.assert_refused(b"hello");
    }
}

/// The addresses in an answer of `i386.c`: two `struct sockaddr_in`.
pub(in crate::exec) fn addresses(answer: &[u8]) -> [SocketAddr; 2] {
    let (chunks, rest) = answer.as_chunks::<16>();
    let [first, second] = chunks else {
        panic!("{answer:?}");
    };
    assert_eq!(rest, b"");
    [first, second].map(|[_, _, high, low, a, b, c, d, ..]| {
        let port = u16::from_be_bytes([*high, *low]);
        SocketAddr::from((Ipv4Addr::new(*a, *b, *c, *d), port))
    })
}

/// The path of `i386.c`, compiled; gcc needs no libraries of that machine type for it.
#[cfg(target_arch = "x86_64")]
pub(in crate::exec) fn i386() -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("i386");
    let output = Command::new("gcc")
        .args([
            "-m32",
            "-O1",
            "-Wall",
            "-Werror",
            "-ffreestanding",
            "-fno-pie",
        ])
        .args(["-fno-stack-protector", "-nostdlib", "-static", "-o"])
        .arg(&target)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/exec/coverage/i386.c"
        ))
        .output()
        .expect("a compiler (make setup)");
    assert!(output.status.success(), "{output:?}");
    target.to_str().expect("text").to_owned()
}

/// A job that cron runs once after a boot (`@reboot`). cron takes its start for the first one since the boot, because its run
/// file is missing.
const CRON: &str = "
for directory in /run /etc/cron.d /var/spool/cron/crontabs; do mount -t tmpfs none $directory; done
echo '@reboot root exec SERVER --accept=block' >/etc/cron.d/server
exec cron -f
";
