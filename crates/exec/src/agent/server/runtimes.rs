//! The connections of container runtimes.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;
use std::mem::{Discriminant, discriminant};
use std::time::Instant;

use peername_sys::NameCall;
use peername_sys::event::epoll::Interest;
use peername_sys::ipc::seqpacket::peer_user;
use peername_sys::process::stderr::try_write_line;
use peername_sys::process::user::effective_uid;
use peername_sys::throttle::Throttle;

use super::{Agent, RETRY_INTERVAL};
use crate::agent::container::Container;
use crate::agent::registration::{Announced, Progress, Registration, RegistrationError};

impl Agent {
    /// Accepts a runtime's connection.
    pub(super) fn accept(&mut self) {
        if self.registrations.len() >= MAX_REGISTRATIONS {
            return self.pause_accepting();
        }
        let socket = match self.socket.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => {
                try_write_line(&format!(
                    "peername: a runtime's connection: accept4(2): {error}"
                ));
                return self.pause_accepting();
            }
        };
        let user = match peer_user(&socket) {
            Ok(user) if self.users.contains(&user) => user,
            other => return self.warnings.log_stranger(other.ok()),
        };
        let share = self.share(user);
        let open = self.registrations.values();
        if open.filter(|open| open.user == user).count() >= share {
            let error = RegistrationError::TooMany { user, share };
            return self.warnings.log_refused(&error);
        }
        let number = self.next_number();
        let registered = socket
            .set_nonblocking(true)
            .call("ioctl(FIONBIO)")
            .and_then(|()| self.epoll.add(&socket, number, Interest::Readable));
        match registered {
            Ok(()) => {
                _ = self
                    .registrations
                    .insert(number, Registration::new(user, socket))
            }
            Err(error) => try_write_line(&format!("peername: a runtime's connection: {error}")),
        }
    }

    /// How many of a user's connections may be open. Those of `--runtime-uid` must not keep root's and the agent's own out.
    fn share(&self, user: u32) -> usize {
        match user == 0 || user == effective_uid() {
            true => MAX_REGISTRATIONS,
            false => (MAX_REGISTRATIONS / self.users.len().max(1)).max(1),
        }
    }

    /// Leaves connections in the backlog for a while: there is no descriptor, or many are open.
    fn pause_accepting(&mut self) {
        let _ = self.epoll.delete(&self.socket);
        self.accept_at = Some(Instant::now() + RETRY_INTERVAL);
    }

    /// Receives what a runtime has sent.
    pub(super) fn receive(&mut self, number: u64) {
        let Some(registration) = self.registrations.get_mut(&number) else {
            return;
        };
        match registration.receive() {
            Progress::Incomplete => return,
            Progress::Complete(announced) => self.add(announced),
            Progress::Empty => {}
            Progress::Refused(error) => self.warnings.log_refused(&error),
        }
        self.registrations.remove(&number);
    }

    /// Closes connections that are late.
    pub(super) fn close_late(&mut self, now: Instant) {
        self.registrations.retain(|_, registration| {
            let is_late = registration.deadline <= now;
            if is_late {
                self.warnings.log_refused(&RegistrationError::Late);
            }
            !is_late
        });
    }

    /// Adds a container.
    fn add(&mut self, announced: Announced) {
        let Announced { state, calls } = announced;
        let (id, name) = (state.id.clone(), state.policy.clone());
        let policy = self.policies.iter().find(|policy| policy.name == name);
        let Some(policy) = policy else {
            return try_write_line(&format!(
                "peername: container {id}: no policy has the name {name:?} (listenerMetadata of its seccomp profile), so its accept(2) \
                 fails"
            ));
        };
        if policy.verbose {
            try_write_line(&format!("peername: container {id}: policy {name}"));
        }
        match Container::new(state, calls, policy.slots) {
            Ok(container) => {
                let number = self.next_number();
                self.keep(number, &container);
                self.containers.insert(number, container);
                self.start(number);
            }
            Err(error) => try_write_line(&format!(
                "peername: container {id}: {error}; its accept(2) fails"
            )),
        }
    }
}

/// What is logged of connections that are refused; their senders may send many.
#[derive(Debug, Default)]
pub(super) struct RuntimeWarnings {
    strangers: Throttle,
    refused: HashMap<Discriminant<RegistrationError>, Throttle>,
}

impl RuntimeWarnings {
    fn log_stranger(&self, user: Option<u32>) {
        if let Some(suppressed) = self.strangers.pass() {
            let user = user.map_or_else(|| "?".to_owned(), |user| user.to_string());
            try_write_line(&format!(
                "peername: refused a connection to the agent's socket by user {user}, who may not announce containers \
                 (--runtime-uid){}",
                Suppressed(suppressed)
            ));
        }
    }

    fn log_refused(&mut self, error: &RegistrationError) {
        let throttle = self.refused.entry(discriminant(error)).or_default();
        if let Some(suppressed) = throttle.pass() {
            try_write_line(&format!(
                "peername: a runtime announced a container, but {error}; its accept(2) fails{}",
                Suppressed(suppressed)
            ));
        }
    }
}

/// How many lines like this one were not logged; nothing where there are none.
struct Suppressed(u64);

impl Display for Suppressed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} more since the last line)"),
        }
    }
}

/// Each is a container that starts at this moment; others wait in the backlog.
const MAX_REGISTRATIONS: usize = 256;
