//! `peername ca`: an authority that nobody else can read, and programs that trust it.
//!
//! The certificates are looked at by OpenSSL; whether clients accept what the authority signs is asked of the
//! clients, each with nothing but the variables that `peername ca env` prints.

mod clients;
mod files;
mod server;

use std::process::{Command, Output};

use crate::harness::lab::{Host, Scratch};
use crate::harness::peername::Peername;

/// A directory with room for an authority.
struct Rig {
    host: Host,
    scratch: Scratch,
    ca: String,
}

impl Rig {
    /// Without one so far.
    fn empty() -> Self {
        let (host, scratch) = (Host::new(), Scratch::new());
        let ca = scratch.path_text("ca");
        Self { host, scratch, ca }
    }

    /// With one that `ca init` made.
    fn new(options: &[&str]) -> Self {
        let rig = Self::empty();
        rig.succeeds("init", options);
        rig
    }

    /// `peername ca ACTION --ca DIR`.
    fn ca(&self, action: &str, options: &[&str]) -> Output {
        let args = [&["ca", action, "--ca", &self.ca], options].concat();
        Peername::run(&self.host, &args)
    }

    /// The same; what it printed.
    fn succeeds(&self, action: &str, options: &[&str]) -> String {
        let output = self.ca(action, options);
        assert!(output.status.success(), "{action}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The same; what it complained of.
    fn fails(&self, action: &str) -> String {
        let output = self.ca(action, &[]);
        assert_eq!(output.status.code(), Some(1), "{action}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// A shell command, with `$PEERNAME`, `$CA` and `$DIR` (for anything else) set.
    fn shell(&self, script: &str) -> Output {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "300", "sh", "-c", script])
            .env("PEERNAME", env!("CARGO_BIN_EXE_peername"))
            .env("CA", &self.ca)
            .env("DIR", self.scratch.path(""));
        self.host.output(&mut command, "")
    }

    /// The same; what it printed.
    fn shell_succeeds(&self, script: &str) -> String {
        let output = self.shell(script);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}
