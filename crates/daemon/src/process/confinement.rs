//! Confines the long-running subcommands, and logs how far they are confined (docs/confinement.md).

use peername_server::confinement::{Confinement, Needs};
use peername_sys::fs::text_file;

use crate::value::{self, text};
use crate::{logging, service_manager};

/// `--no-sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct SandboxArgs {
    /// Do not confine the process after its start by Landlock and seccomp (docs/confinement.md)
    #[arg(long, hide_short_help = true)]
    pub no_sandbox: bool,
}

impl SandboxArgs {
    /// Confines this process, unless `--no-sandbox` is given. To be called after the privileges are dropped, and before
    /// anything starts a thread. The files that were read so far stay readable, and names resolvable if one was resolved.
    ///
    /// # Errors
    ///
    /// The kernel refuses the rules, although it knows them.
    pub fn confine(self, needs: Needs) -> anyhow::Result<AppliedConfinement> {
        if self.no_sandbox {
            return Ok(AppliedConfinement(None));
        }
        service_manager::connect();
        logging::journal::native::connect();
        let needs = Needs {
            files: [text_file::opened(), needs.files].concat(),
            resolves_names: needs.resolves_names || value::has_resolved_names(),
            ..needs
        };
        Ok(AppliedConfinement(Some(needs.confine()?)))
    }
}

/// The confinement in force; `None` with `--no-sandbox`. It is logged later, because the log needs a thread.
#[must_use]
pub struct AppliedConfinement(Option<Confinement>);

impl AppliedConfinement {
    /// Logs what the process is confined to, and which confinement is missing.
    pub fn log(&self) {
        let Some(confinement) = &self.0 else {
            tracing::warn!(
                "--no-sandbox: this process is not confined. Whoever takes it over can read files and run programs"
            );
            return;
        };
        match confinement.landlock {
            None => tracing::warn!(
                "not confined to its files: Landlock is not available to this process. It needs Linux 5.13 or later, `landlock` in \
                 the kernel's list `lsm=`, and a container's filter that allows it"
            ),
            Some(version) if version < SCOPES_SINCE => tracing::debug!(
                "Landlock {version} (before Linux 6.12): signals to other processes are not blocked"
            ),
            Some(_) => {}
        }
        if !confinement.seccomp {
            tracing::warn!(
                "not confined to its system calls: seccomp(2) is not available to this process"
            );
        }
        if confinement.landlock.is_some() {
            let readable = confinement.readable.iter().map(|path| path.display());
            tracing::debug!(readable = text::join(readable), "confined");
        }
    }
}

/// The version of Landlock that blocks signals and abstract Unix sockets.
pub const SCOPES_SINCE: u32 = 6;
