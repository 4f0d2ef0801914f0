//! The supervisors of the containers.

use std::time::Instant;

use peername_sys::event::epoll::Interest;

use super::{Agent, RETRY_INTERVAL, is_due};
use crate::agent::container::{Container, STOP_TIMEOUT};
use crate::agent::descriptor_store::{ContainerPart, StoredName};
use crate::stderr_line::try_write_line;

impl Agent {
    /// Starts the supervisors of all containers.
    pub(super) fn start_all(&mut self) {
        let numbers: Vec<u64> = self.containers.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.start(number));
    }

    /// Stops all supervisors at once, with one deadline for all: a supervisor that does not stop delays no other.
    pub(super) fn stop_all(&mut self) {
        self.containers
            .values_mut()
            .for_each(Container::request_stop);
        let deadline = Instant::now() + STOP_TIMEOUT;
        for container in self.containers.values_mut() {
            container.stop_supervisor_by(deadline);
        }
    }

    /// Starts the supervisors that are due.
    pub(super) fn start_due(&mut self, now: Instant) {
        let due: Vec<u64> = self
            .containers
            .iter()
            .filter(|(_, container)| is_due(container.restart_at, now))
            .map(|(&number, _)| number)
            .collect();
        due.into_iter().for_each(|number| self.start(number));
    }

    /// Starts a container's supervisor, unless the container has ended.
    pub(super) fn start(&mut self, number: u64) {
        let Some(container) = self.containers.get_mut(&number) else {
            return;
        };
        if container.has_ended() {
            return self.remove(number);
        }
        let name = &container.policy;
        let policy = self.policies.iter().find(|policy| policy.name == *name);
        let Some(policy) = policy else {
            // Checked again later, because without a supervisor nothing else notices the container's end.
            container.restart_at = Some(Instant::now() + RETRY_INTERVAL);
            if !container.missing_policy_logged {
                container.missing_policy_logged = true;
                try_write_line(&format!(
                    "peername: container {}: no policy has the name {:?} any more, so its accept(2) waits",
                    container.id, container.policy
                ));
            }
            return;
        };
        let id = container.id.clone();
        let started = container
            .start_supervisor(policy)
            .and_then(|process| self.epoll.add(process, number, Interest::Readable));
        if let Err(error) = started {
            container.stop_supervisor();
            container.restart_at = Some(Instant::now() + RETRY_INTERVAL);
            let error = error.to_string();
            if container.start_failures.passes(&error) {
                try_write_line(&format!(
                    "peername: container {id}: starting its supervisor: {error}"
                ));
            }
        } else {
            container.start_failures.clear();
        }
    }

    /// Reaps a container's supervisor, if it has exited, and removes the container if that has ended. Otherwise
    /// [`Agent::start_due`] starts another supervisor.
    pub(super) fn reap_supervisor(&mut self, number: u64) {
        let Some(container) = self.containers.get_mut(&number) else {
            return;
        };
        let Some(status) = container.reap_supervisor() else {
            return;
        };
        if container.has_ended() {
            self.remove(number);
        } else {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            try_write_line(&format!(
                "peername: container {}: its supervisor has ended ({status}); starting another",
                container.id
            ));
        }
    }

    /// Removes a container that has ended.
    fn remove(&mut self, number: u64) {
        let container = self.containers.remove(&number);
        if let (Some(admin), Some(container)) = (&mut self.admin, container) {
            admin.add_ended(&container);
        }
        for part in ContainerPart::ALL {
            self.remove_stored(StoredName::Container { number, part });
        }
    }
}
