//! The throttled log of the connections and containers of runtimes that the agent refuses.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::mem::{Discriminant, discriminant};

use peername_sys::SyscallError;
use peername_sys::throttle::Throttle;

use super::registration::RegistrationError;
use crate::stderr_line::try_write_line;

/// Logs refused connections, of which a process may open many: one throttle for each reason.
#[derive(Debug, Default)]
pub(super) struct RuntimeRefusalLog {
    untrusted_users: Throttle,
    refused: HashMap<Discriminant<RegistrationError>, Throttle>,
    start_failures: Throttle,
}

impl RuntimeRefusalLog {
    pub(super) fn log_untrusted_user(&self, user: Option<u32>) {
        if let Some(suppressed) = self.untrusted_users.pass() {
            let user = user.map_or_else(|| "?".to_owned(), |user| user.to_string());
            try_write_line(&format!(
                "peername: refused a connection to the agent's socket by user {user}, who may not announce containers \
                 (--runtime-uid){}",
                Suppressed(suppressed)
            ));
        }
    }

    /// Logs that a supervisor can't be started, which is tried again each second for each container.
    pub(super) fn log_start_failure(&self, id: &str, error: &SyscallError) {
        if let Some(suppressed) = self.start_failures.pass() {
            try_write_line(&format!(
                "peername: container {id}: starting its supervisor: {error}{}",
                Suppressed(suppressed)
            ));
        }
    }

    pub(super) fn log_refused(&mut self, error: &RegistrationError) {
        let throttle = self.refused.entry(discriminant(error)).or_default();
        if let Some(suppressed) = throttle.pass() {
            try_write_line(&format!(
                "peername: refused a runtime's connection: {error}; accept(2) fails in the container that it was to announce{}",
                Suppressed(suppressed)
            ));
        }
    }
}

/// The number of suppressed lines like this one; displayed as nothing if it is 0.
struct Suppressed(u64);

impl Display for Suppressed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} more since the last line)"),
        }
    }
}
