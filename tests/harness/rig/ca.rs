//! `peername ca` on a host of its own.

pub(crate) mod server;

use std::process::{Command, Output};

use crate::harness::lab::{Host, Scratch, assert_succeeds, stderr_text};
use crate::harness::peername::Peername;

/// A directory for an authority.
pub(crate) struct CaRig {
    pub(crate) host: Host,
    pub(crate) scratch: Scratch,
    pub(crate) ca: String,
}

impl CaRig {
    /// A rig without an authority.
    pub(crate) fn empty() -> Self {
        let (host, scratch) = (Host::new(), Scratch::new());
        let ca = scratch.path_text("ca");
        Self { host, scratch, ca }
    }

    /// A rig with an authority that `ca init` has made.
    pub(crate) fn new(options: &[&str]) -> Self {
        let rig = Self::empty();
        rig.succeeds("init", options);
        rig
    }

    /// Runs `peername ca ACTION --ca DIR`.
    pub(crate) fn ca(&self, action: &str, options: &[&str]) -> Output {
        let args = [&["ca", action, "--ca", &self.ca], options].concat();
        Peername::run(&self.host, &args)
    }

    /// Like [`Self::ca`]; asserts success and returns what it printed.
    pub(crate) fn succeeds(&self, action: &str, options: &[&str]) -> String {
        assert_succeeds(&self.ca(action, options))
    }

    /// Like [`Self::ca`], without options; asserts failure and returns the error.
    pub(crate) fn fails(&self, action: &str) -> String {
        let output = self.ca(action, &[]);
        assert_eq!(output.status.code(), Some(1), "{action}: {output:?}");
        stderr_text(&output)
    }

    /// Runs a shell command with `$PEERNAME`, `$CA` and `$DIR` (for other files) set.
    pub(crate) fn shell(&self, script: &str) -> Output {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "300", "sh", "-c", script])
            .env("PEERNAME", env!("CARGO_BIN_EXE_peername"))
            .env("CA", &self.ca)
            .env("DIR", self.scratch.path(""));
        self.host.output(&mut command, "")
    }

    /// Like [`Self::shell`]; asserts success and returns what it printed.
    pub(crate) fn shell_succeeds(&self, script: &str) -> String {
        assert_succeeds(&self.shell(script))
    }
}
