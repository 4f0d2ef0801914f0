//! The connections of container runtimes.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Instant;

use peername_sys::NameCall;
use peername_sys::event::epoll::Interest;
use peername_sys::ipc::seqpacket::peer_user;
use peername_sys::process::user::effective_uid;

use super::{Agent, RETRY_INTERVAL};
use crate::agent::container::Container;
use crate::agent::container_state::ContainerState;
use crate::agent::registration::{Registration, RegistrationError, RegistrationProgress};
use crate::agent::runtime_refusal_log::write_refused;
use crate::stderr_line::try_write_line;

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
            other => return self.refusals.log_untrusted_user(other.ok()),
        };
        let share = self.share(user, MAX_REGISTRATIONS);
        let registrations = self.registrations.values();
        let open = registrations.filter(|registration| registration.user == user);
        if open.count() >= share {
            let error = RegistrationError::TooMany { user, share };
            return self.refusals.log_refused(&error);
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

    /// The part of `total` that a user of `--runtime-uid` may have. Root and the agent's user have no limit: the others must not
    /// keep them out.
    fn share(&self, user: u32, total: usize) -> usize {
        if is_unlimited(user) {
            usize::MAX
        } else {
            (total / self.users.len()).max(1)
        }
    }

    /// Leaves connections in the backlog for a while: there is no descriptor, or too many connections are open.
    fn pause_accepting(&mut self) {
        let _ = self.epoll.delete(&self.socket);
        self.accept_at = Some(Instant::now() + RETRY_INTERVAL);
    }

    /// Receives a runtime's message.
    pub(super) fn receive(&mut self, number: u64) {
        let Some(registration) = self.registrations.get_mut(&number) else {
            return;
        };
        let user = registration.user;
        match registration.receive() {
            RegistrationProgress::Incomplete => return,
            RegistrationProgress::Complete(state, listener) => {
                self.add_container(user, state, listener);
            }
            RegistrationProgress::Empty => {}
            RegistrationProgress::Refused(error) => self.refusals.log_refused(&error),
        }
        self.registrations.remove(&number);
    }

    /// Closes connections that are late.
    pub(super) fn close_late(&mut self, now: Instant) {
        self.registrations.retain(|_, registration| {
            let is_late = registration.deadline <= now;
            if is_late {
                self.refusals.log_refused(&RegistrationError::Late);
            }
            !is_late
        });
    }

    /// Adds a container that a runtime of this user has announced, with its seccomp listener.
    fn add_container(&mut self, user: u32, state: ContainerState, listener: OwnedFd) {
        let share = self.share(user, SHARED_CONTAINERS);
        let containers = self.containers.values();
        let running = containers.filter(|container| container.user == user);
        if running.count() >= share {
            let error = RegistrationError::TooManyContainers { user, share };
            return self.refusals.log_refused(&error);
        }
        let (id, name) = (state.id.clone(), state.policy.clone());
        let policy = self.policies.iter().find(|policy| policy.name == name);
        let Some(policy) = policy else {
            let error = RegistrationError::NoPolicy { id, policy: name };
            return self.log_refused_container(user, &error);
        };
        if policy.verbose {
            try_write_line(&format!("peername: container {id}: policy {name}"));
        }
        match Container::new(user, state, listener, policy.slots) {
            Ok(container) => {
                let number = self.next_number();
                self.store_container(number, &container);
                self.containers.insert(number, container);
                self.start(number);
            }
            Err(source) => {
                let error = RegistrationError::Container { id, source };
                self.log_refused_container(user, &error);
            }
        }
    }

    /// Logs why a container is refused: each of root and of the agent's user, some of those of others.
    fn log_refused_container(&mut self, user: u32, error: &RegistrationError) {
        if is_unlimited(user) {
            write_refused(error, 0);
        } else {
            self.refusals.log_refused(error);
        }
    }
}

/// Whether this is root or the agent's user, whom others must not keep out.
fn is_unlimited(user: u32) -> bool {
    user == 0 || user == effective_uid()
}

/// The maximum number of open connections. Each is a container that starts at this moment; others wait in the backlog.
const MAX_REGISTRATIONS: usize = 256;
/// The number of containers that the users of `--runtime-uid` share. Each has a supervisor process and four descriptors in the
/// store; FileDescriptorStoreMax= of the packaged unit has room for twice as many.
const SHARED_CONTAINERS: usize = 1024;
