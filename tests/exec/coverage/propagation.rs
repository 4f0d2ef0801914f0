//! Processes that are started with an empty environment: the library propagates itself through every function of exec(3), so
//! that their accept(2) does not go through the supervisor.

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::rig::exec::{Libc, PRELOAD, ProgramRig, compile, v2};

/// Starts a program that executes itself by `function` without an environment, and returns what it reports then.
fn answer_after_exec(program: &str, function: &str) -> String {
    first_answer(&ProgramRig::with_mode(PRELOAD, &[], &[program, function]))
}

/// Sends a header; asserts that the client is seen, and returns the rest of the answer.
fn first_answer(program: &ProgramRig) -> String {
    let client = fresh_client_v4();
    let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
    let output = conn.recv_text_to_end();
    let seen = output.strip_prefix(&format!("{client} same "));
    let log = program.process.log();
    seen.unwrap_or_else(|| panic!("{client}: {output}\n{log}"))
        .trim_end()
        .to_owned()
}

#[test]
fn library_is_propagated_through_every_function_of_exec() {
    for libc in [Libc::Glibc, Libc::Musl] {
        let program = compile("exec/coverage/exec_scrubbed.c", "exec-scrubbed", libc, &[]);
        for function in [
            "execve",
            "null",
            "execle",
            "execle8",
            "execvpe",
            "fexecve",
            "execveat",
            "posix_spawn",
            "posix_spawnp",
            "vfork",
            "execv",
            "execvp",
            "execl",
            "execl8",
            "execlp",
        ] {
            // musl has no execveat(3).
            if matches!((libc, function), (Libc::Musl, "execveat")) {
                continue;
            }
            let output = answer_after_exec(&program, function);
            assert_eq!(
                output, "library=1 table=1 other= last=",
                "{libc:?} {function}"
            );
        }
        // The program's own LD_PRELOAD entries stay, after peername's.
        let output = answer_after_exec(&program, "given");
        assert_eq!(
            output, "library=1 table=1 other=kept last=libc.so.6",
            "{libc:?}"
        );
        // The library sees no bare system call: the supervisor answers for the process.
        let output = answer_after_exec(&program, "syscall");
        assert_eq!(output, "library=0 table=0 other= last=", "{libc:?}");
    }
}

/// A shell may start programs of any kind: each has the library or the supervisor.
#[test]
fn auto_preloads_into_shells_and_what_they_start() {
    let program = compile(
        "exec/coverage/exec_scrubbed.c",
        "exec-scrubbed-by-auto",
        Libc::Glibc,
        &[],
    );
    for (function, expected) in [
        ("execve", "library=1 table=1"),
        ("syscall", "library=0 table=0"),
    ] {
        let words = ["sh", "-c", "$0 $1; exit $?", &program, function];
        let output = first_answer(&ProgramRig::with_mode("--mode=auto", &[], &words));
        assert_eq!(output, format!("{expected} other= last="), "{function}");
    }
}

/// The process runs as a user that can't open the table, so the library is not propagated: it would be of no use.
#[test]
fn process_that_cannot_open_the_table_keeps_its_environment() {
    let program = ProgramRig::with_mode(PRELOAD, &[], &["python3", "-uc", USER]);
    program.process.wait_printed("['OTHER=1']");
}

const USER: &str = "
import os, socket
listener = socket.create_server(('10.81.0.1', 8443))
if os.fork() == 0:
    os.setuid(65534)
    code = 'print(open(\"/proc/self/environ\").read().rstrip(chr(0)).split(chr(0)))'
    os.execve('/usr/bin/python3', ['python3', '-c', code], {'OTHER': '1'})
os.wait()
listener.accept()
";
