//! Tests on programs of this machine, and on files created here.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tempfile::{TempDir, tempdir};

use super::*;

fn write_program(dir: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

fn examine_in(dir: &TempDir, name: &str) -> Result<Program, ProgramError> {
    examine(name.as_ref(), dir.path().as_os_str())
}

fn reason(name: &str) -> Reason {
    examine(OsStr::new(name), &search_path()).unwrap().reason
}

#[test]
fn programs_of_this_machine_are_classified() {
    assert!(matches!(reason("ls"), Reason::Dynamic(_)));
    assert!(matches!(reason("sh"), Reason::Starter(_)));
    assert!(matches!(reason("env"), Reason::Starter(_)));
    let own = env::current_exe().unwrap();
    let program = examine(own.as_os_str(), OsStr::new("")).unwrap();
    assert_eq!(
        (&program.file, program.mechanism),
        (&own, Mechanism::Preload)
    );
}

#[test]
fn c_program_is_classified_by_its_linking() {
    let dir = tempdir().unwrap();
    let source = write_program(&dir, "main.c", "int main(void) { return 0; }\n");
    let compile = |out: &str, options: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(options)
            .arg("-o")
            .arg(dir.path().join(out))
            .arg(&source);
        assert!(cc.status().expect("a C compiler").success());
        examine_in(&dir, out).unwrap().reason
    };
    assert!(matches!(compile("dynamic", &[]), Reason::Dynamic(_)));
    assert!(matches!(compile("static", &["-static"]), Reason::Static(_)));
    assert!(matches!(
        compile("static-pie", &["-static-pie"]),
        Reason::Static(_)
    ));
    assert!(matches!(
        compile("stripped", &["-static", "-s"]),
        Reason::Static(_)
    ));
}

#[test]
fn script_is_classified_by_its_interpreter() {
    let dir = tempdir().unwrap();
    let ls = find(OsStr::new("ls"), &search_path()).unwrap();
    let python = dir.path().join("python9");
    fs::copy(&ls, &python).unwrap();
    write_program(&dir, "direct", format!("#!{}\n", python.display()));
    write_program(&dir, "by-env", "#!/usr/bin/env python9\n");
    let outer = dir.path().join("by-env");
    write_program(&dir, "twice", format!("#!{} -x\n", outer.display()));
    for script in ["direct", "by-env", "twice"] {
        let program = examine_in(&dir, script).unwrap();
        assert_eq!(program.reason, Reason::Dynamic(python.clone()), "{script}");
        assert_eq!(program.file, dir.path().join(script));
    }
    write_program(&dir, "shell", "#!/bin/sh\n");
    write_program(&dir, "nothing", "echo hello\n");
    for script in ["shell", "nothing"] {
        let program = examine_in(&dir, script).unwrap();
        assert!(matches!(program.reason, Reason::Starter(_)), "{script}");
        assert_eq!(program.mechanism, Mechanism::Preload, "{script}");
    }
}

#[test]
fn program_that_can_not_run_is_an_error() {
    let dir = tempdir().unwrap();
    let itself = dir.path().join("loop");
    write_program(&dir, "loop", format!("#!{}\n", itself.display()));
    write_program(&dir, "gone", "#!/nonexistent/perl\n");
    fs::write(dir.path().join("plain"), "text").unwrap();
    assert!(matches!(
        examine_in(&dir, "loop"),
        Err(ProgramError::TooManyInterpreters(_))
    ));
    assert_eq!(
        examine_in(&dir, "gone").unwrap_err().to_string(),
        format!(
            "{}: its interpreter /nonexistent/perl is missing",
            dir.path().join("gone").display()
        )
    );
    assert!(matches!(
        examine_in(&dir, "plain"),
        Err(ProgramError::NotExecutable(_))
    ));
    for name in ["", "absent", "/", "./absent"] {
        assert!(
            matches!(
                examine_in(&dir, name),
                Err(ProgramError::NotFound(_) | ProgramError::NotExecutable(_))
            ),
            "{name}"
        );
    }
}

#[test]
fn program_that_gains_privileges_is_refused() {
    let dir = tempdir().unwrap();
    let ls = find(OsStr::new("ls"), &search_path()).unwrap();
    if !peername_sys::process::user::is_root() {
        // Only root can change the owner of a file; su is set-user-ID root.
        let su = examine(OsStr::new("su"), &search_path());
        assert!(matches!(su, Err(ProgramError::Privileged { .. })));
        return;
    }
    let other = 65_534;
    let copy = write_program(&dir, "ls", fs::read(&ls).unwrap());
    std::os::unix::fs::chown(&copy, Some(other), Some(other)).unwrap();
    for (mode, refused) in [
        (0o4755, true),
        (0o2755, true),
        (0o2745, false),
        (0o755, false),
    ] {
        fs::set_permissions(&copy, Permissions::from_mode(mode)).unwrap();
        let examined = examine_in(&dir, "ls");
        let is_refused = matches!(examined, Err(ProgramError::Privileged { .. }));
        assert_eq!(is_refused, refused, "{mode:o}: {examined:?}");
    }
}

/// Inspection of a corrupt file must not panic. The files are the first KiB of a real program, cut off or with a changed byte
/// at each offset.
#[test]
fn corrupt_files_do_not_panic() {
    let dir = tempdir().unwrap();
    let own = fs::read(find(OsStr::new("ls"), &search_path()).unwrap()).unwrap();
    let headers = own.get(..1024).unwrap();
    for at in 0..1024 {
        let mut changed = headers.to_vec();
        changed[at] ^= 0xff;
        write_program(&dir, "changed", &changed);
        write_program(&dir, "cut", &headers[..at]);
        for name in ["changed", "cut"] {
            // A result of either kind; what matters is that there is one.
            let _ = examine_in(&dir, name);
        }
    }
}
