//! The connections of container runtimes.

use std::io::ErrorKind;
use std::time::Instant;

use peername_sys::NameCall;
use peername_sys::event::epoll::Interest;
use peername_sys::ipc::seqpacket::peer_user;
use peername_sys::process::stderr::try_write_line;
use peername_sys::process::user::effective_uid;

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
        let open = self.registrations.values().filter(|open| open.user == user);
        if open.count() >= share {
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
                let registration = Registration::new(user, socket);
                self.registrations.insert(number, registration);
            }
            Err(error) => try_write_line(&format!("peername: a runtime's connection: {error}")),
        }
    }

    /// How many of a user's connections may be open. Those of `--runtime-uid` must not keep root's and the agent's own out.
    fn share(&self, user: u32) -> usize {
        match user == 0 || user == effective_uid() {
            true => MAX_REGISTRATIONS,
            false => (MAX_REGISTRATIONS / self.users.len()).max(1),
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

/// Each is a container that starts at this moment; others wait in the backlog.
const MAX_REGISTRATIONS: usize = 256;
