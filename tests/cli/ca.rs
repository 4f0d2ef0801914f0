//! `peername ca`: an authority whose key only its owner can read, and clients that trust it.
//!
//! OpenSSL inspects the certificates; real clients show whether they accept what the authority signs, each
//! with nothing but the variables that `peername ca env` prints.

mod clients;
mod files;
mod server;

use std::process::{Command, Output};

use crate::harness::lab::{Host, Scratch};
use crate::harness::peername::Peername;

/// A directory for an authority.
struct Rig {
    host: Host,
    scratch: Scratch,
    ca: String,
}

impl Rig {
    /// Without an authority so far.
    fn empty() -> Self {
        let (host, scratch) = (Host::new(), Scratch::new());
        let ca = scratch.path_text("ca");
        Self { host, scratch, ca }
    }

    /// With an authority that `ca init` made.
    fn new(options: &[&str]) -> Self {
        let rig = Self::empty();
        rig.succeeds("init", options);
        rig
    }

    /// Runs `peername ca ACTION --ca DIR`.
    fn ca(&self, action: &str, options: &[&str]) -> Output {
        let args = [&["ca", action, "--ca", &self.ca], options].concat();
        Peername::run(&self.host, &args)
    }

    /// The same; asserts success and returns what it printed.
    fn succeeds(&self, action: &str, options: &[&str]) -> String {
        let output = self.ca(action, options);
        assert!(output.status.success(), "{action}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The same; asserts failure and returns the error.
    fn fails(&self, action: &str) -> String {
        let output = self.ca(action, &[]);
        assert_eq!(output.status.code(), Some(1), "{action}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Runs a shell command with `$PEERNAME`, `$CA` and `$DIR` (for other files) set.
    fn shell(&self, script: &str) -> Output {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "300", "sh", "-c", script])
            .env("PEERNAME", env!("CARGO_BIN_EXE_peername"))
            .env("CA", &self.ca)
            .env("DIR", self.scratch.path(""));
        self.host.output(&mut command, "")
    }

    /// The same; asserts success and returns what it printed.
    fn shell_succeeds(&self, script: &str) -> String {
        let output = self.shell(script);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}
