//! The throttled log of the connections and containers of runtimes that the agent refuses.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::mem::{Discriminant, discriminant};

use peername_sys::throttle::Throttle;

use super::registration::RegistrationError;
use crate::stderr_line::try_write_line;

/// Logs refused connections, of which a process may open many: one throttle for each reason.
#[derive(Debug, Default)]
pub(super) struct RuntimeRefusalLog {
    untrusted_users: Throttle,
    refused: HashMap<Discriminant<RegistrationError>, Throttle>,
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

    pub(super) fn log_refused(&mut self, error: &RegistrationError) {
        let throttle = self.refused.entry(discriminant(error)).or_default();
        if let Some(suppressed) = throttle.pass() {
            write_refused(error, suppressed);
        }
    }
}

/// Logs a refused connection, of which this many before were not logged.
pub(super) fn write_refused(error: &RegistrationError, suppressed: u64) {
    try_write_line(&format!(
        "peername: refused a runtime's connection: {error}; accept(2) fails in the container that it was to announce{}",
        Suppressed(suppressed)
    ));
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
