//! The agent's use of the descriptor store: it stores its socket and its containers, and adopts those of an earlier agent.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Instant;

use peername_sys::event::epoll::Interest;

use super::{Agent, AgentError, RETRY_INTERVAL, Token};
use crate::agent::container::{Container, StoredContainer};
use crate::agent::descriptor_store::{
    ContainerPart, DescriptorStore, StoreEvent, StoredDescriptor, StoredName,
};
use crate::stderr_line::try_write_line;

impl Agent {
    /// Adopts the containers of an earlier agent. A container of which a part is missing, because the agent did not store it or
    /// the store has closed it, is removed.
    pub(super) fn adopt(&mut self, stored: Vec<StoredDescriptor>) {
        let mut found: HashMap<u64, StoredContainer> = HashMap::new();
        for StoredDescriptor { name, fd } in stored {
            if let StoredName::Container { number, part } = name {
                // No number is used twice, even if other parts of the container are missing.
                self.last_number = self.last_number.max(number);
                found.entry(number).or_default().put(part, fd);
            }
        }
        for (number, stored) in found {
            match Container::from_stored(stored) {
                Ok(container) => _ = self.containers.insert(number, container),
                Err(why) => {
                    if let Some(why) = why {
                        try_write_line(&format!(
                            "peername: a container of an earlier agent: {why}"
                        ));
                    }
                    for part in ContainerPart::ALL {
                        self.remove_stored(StoredName::Container { number, part });
                    }
                }
            }
        }
    }

    /// Handles an event of the store. Returns whether another agent takes over, which waits for the end of this agent's
    /// connection to the store. Otherwise the store has ended, and is opened again.
    pub(super) fn handle_store_event(&mut self) -> bool {
        let event = self.store.as_mut().map(|store| store.next_event());
        if event == Some(StoreEvent::TakenOver) {
            return true;
        }
        self.store = None;
        self.reopen_at = Some(Instant::now());
        false
    }

    /// Opens another store, and stores everything there.
    pub(super) fn reopen_store(&mut self) -> Result<(), AgentError> {
        self.reopen_at = None;
        match self.host.reopen_store() {
            Ok(Some(store)) => {
                self.store = Some(store);
                self.watch_store()?;
                self.reopen_failures.clear();
                if self.store_all() {
                    try_write_line(
                        "peername: the holder of descriptors has ended; another one has them now",
                    );
                } else {
                    try_write_line(
                        "peername: the holder of descriptors has ended; another one could not be given all of them",
                    );
                }
            }
            Ok(None) => self.reopen_at = Some(Instant::now() + RETRY_INTERVAL),
            Err(error) => {
                self.reopen_at = Some(Instant::now() + RETRY_INTERVAL);
                if self.reopen_failures.passes(&error) {
                    try_write_line(&format!(
                        "peername: the holder of descriptors has ended, and no other one can be used: {error}; containers fail if the agent dies"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Watches the events of the store.
    pub(super) fn watch_store(&self) -> Result<(), AgentError> {
        let store = self.store.as_ref();
        match store.and_then(|store| store.events()) {
            Some(events) => Ok(self.epoll.add(events, Token::STORE, Interest::Readable)?),
            None => Ok(()),
        }
    }

    /// Stores the listening socket and all containers. Returns whether the store has everything.
    fn store_all(&mut self) -> bool {
        let mut has_all = self.store_socket();
        if let Some(store) = &mut self.store {
            for (&number, container) in &self.containers {
                has_all &= put_container(&mut **store, number, container);
            }
        }
        has_all
    }

    /// Stores the listening socket. If this returns false, it failed, and containers that are started between two agents fail
    /// with an error of their runtime.
    pub(super) fn store_socket(&mut self) -> bool {
        match &mut self.store {
            Some(store) => store.put(StoredName::Socket, self.socket.as_fd()).is_ok(),
            None => false,
        }
    }

    /// Stores the descriptors of a container.
    pub(super) fn store_container(&mut self, number: u64, container: &Container) {
        if let Some(store) = &mut self.store {
            put_container(&mut **store, number, container);
        }
    }

    /// Removes a descriptor from the store.
    pub(super) fn remove_stored(&mut self, name: StoredName) {
        if let Some(store) = &mut self.store {
            store.remove(name);
        }
    }
}

/// Puts the descriptors of a container into a store. Returns whether the store has them; a failure is logged.
fn put_container(store: &mut dyn DescriptorStore, number: u64, container: &Container) -> bool {
    for part in ContainerPart::ALL {
        let name = StoredName::Container { number, part };
        if let Err(error) = store.put(name, container.part(part)) {
            try_write_line(&format!(
                "peername: container {}: its descriptors can't be kept ({error}), so it fails if the agent dies",
                container.id
            ));
            return false;
        }
    }
    true
}
