//! `peername exec --connect` itself: what it refuses, and what it does not change.

use std::process::Output;

use crate::harness::addr::fresh_client_v4;
use crate::harness::lab::{Host, Scratch, assert_contains, stderr_text, stdout_text};
use crate::harness::peername::{AS_NOBODY, BINARY, Peername, copy_executable, words};
use crate::harness::rig::exec::{Libc, built_connect_library, compile};
use crate::harness::rig::exec_connect::run_connect;

#[track_caller]
fn assert_refused(output: &Output, code: i32, why: &str) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(stderr_text(output).contains(why), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// A program that the library can't cover does not start, because its connections would silently have no header.
#[test]
fn program_that_no_library_covers_does_not_start() {
    let host = Host::new();
    let options = ["-static"];
    let static_client = compile(
        "exec/connect/client.c",
        "connect-client-static",
        Libc::Musl,
        &options,
    );
    let scratch = Scratch::new();
    let set_user_id = scratch.path_text("gaining");
    host.run(
        "install",
        &["--mode=4755", "--owner=nobody", "/bin/true", &set_user_id],
    );
    for (program, why) in [
        (
            &[static_client.as_str(), "block", "127.0.0.1", "9"][..],
            "is statically linked",
        ),
        (&["go", "version"], "is a Go program"),
        (&[&set_user_id], "gains another user (set-user-ID)"),
    ] {
        assert_refused(
            &run_connect(&host, fresh_client_v4(), &[], program, ""),
            125,
            why,
        );
    }
    assert_refused(
        &run_connect(&host, fresh_client_v4(), &[], &["no-such"], ""),
        127,
        "no such program",
    );
    assert_refused(
        &run_connect(&host, fresh_client_v4(), &[], &["/etc/passwd"], ""),
        126,
        "not an executable",
    );
}

/// As execvp(3) does, the search passes over a file that this user may not execute.
#[test]
fn program_is_the_first_that_this_user_may_execute() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let library = built_connect_library().display().to_string();
    host.run("cp", &[&library, &scratch.path_text("")]);
    for (directory, mode) in [("roots", "--mode=4700"), ("everyones", "--mode=755")] {
        std::fs::create_dir(scratch.path(directory)).expect("a directory");
        let tool = scratch.path_text(&format!("{directory}/tool"));
        host.run("install", &[mode, "/bin/true", &tool]);
    }
    let directories = ["roots", "everyones"].map(|name| scratch.path_text(name));
    let path = format!("PATH={}", directories.join(":"));
    let copy = copy_executable(&host, &scratch);
    let as_nobody = [
        &["env", &path, "/usr/bin/setpriv"],
        &AS_NOBODY[1..],
        &[&copy],
    ]
    .concat();
    let args = words("exec --connect --source=192.0.2.1:1 -v -- tool");
    let output = Peername::run_with_input(&host, &as_nobody, &args, "");
    assert!(output.status.success(), "{output:?}");
    assert_contains(
        &stderr_text(&output),
        &["everyones/tool is dynamically linked"],
    );
}

#[test]
fn missing_library_prevents_the_start() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let copy = copy_executable(&host, &scratch);
    let args = ["exec", "--connect", "--source=192.0.2.1:1", "--", "true"];
    let output = Peername::run_with_input(&host, &[&copy], &args, "");
    assert_refused(&output, 125, "libpeername_connect.so is neither");
    scratch.write("libpeername_connect.so", "another one");
    let output = Peername::run_with_input(&host, &[&copy], &args, "");
    assert_refused(&output, 125, "not the library of this version");
    scratch.write("libpeername.so", "another one");
    let args = ["exec", "--mode=preload", "--trust=any", "--", "true"];
    let output = Peername::run_with_input(&host, &[&copy], &args, "");
    assert_refused(&output, 125, "or add --mode notify");
}

#[test]
fn incomplete_or_foreign_options_are_refused() {
    let host = Host::new();
    for (args, why) in [
        ("--connect", "--source <ADDR:PORT>"),
        ("--source=192.0.2.1:1", "were not provided:\n  --connect"),
        (
            "--source=192.0.2.1:1 --trust=any",
            "--source is for --connect, where CMD is a client: ",
        ),
        ("--proxy-version=1", "--connect"),
        ("--connect --source=client", "use an address and a port: "),
        (
            "--connect --source=192.0.2.1:1 --trust=any",
            "tip: with --connect the program is a client: ",
        ),
        (
            "--connect --source=192.0.2.1:1 --mode=notify",
            "cannot be used with '--mode",
        ),
    ] {
        let line = format!("exec {args} -- true");
        let output = Peername::run(&host, &words(&line));
        assert_refused(&output, 2, why);
    }
}

/// LD_PRELOAD keeps its other entries. The program is the process that was started, and its exit code is its own.
#[test]
fn program_keeps_its_process_and_preloads() {
    built_connect_library();
    let host = Host::new();
    let line = "exec \"$0\" exec --connect --source=192.0.2.1:1 --ports=80,443 -- \
        /usr/bin/python3 -c \"import os; print(os.getpid() == $$, os.environ['LD_PRELOAD'].split(':')[1:], \
        os.environ['PEERNAME_SOURCE'], os.environ['PEERNAME_PORTS']); exit(7)\"";
    let preload = format!(
        "LD_PRELOAD={}",
        built_connect_library()
            .with_file_name("libpeername.so")
            .display()
    );
    let output =
        Peername::run_with_input(&host, &["env", &preload, "sh", "-c", line, BINARY], &[], "");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let printed = stdout_text(&output);
    assert!(printed.starts_with("True ['/"), "{printed}");
    assert!(
        printed.ends_with("libpeername.so'] 192.0.2.1:1 80-80,443-443\n"),
        "{printed}"
    );
}
