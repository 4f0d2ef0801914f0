//! Errors of commands that run in a jail of peername.

use std::io;

use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_jail::network::is_jailed;

/// Adds to an error that the command runs in a jail, if it does, because a denial by the jail looks like a refusal by the host.
/// Errors of the command line and of standard output stay as they are.
pub(crate) fn note_jail(error: anyhow::Error) -> anyhow::Error {
    if error.is::<UsageError>() || error.is::<io::Error>() || !is_jailed() {
        return error;
    }
    anyhow::anyhow!(
        "{}; this command runs in a jail of peername, which denies namespaces, routes and supervisors of system calls, and \
         hides the directory of its --ca",
        with_causes(&error)
    )
}
