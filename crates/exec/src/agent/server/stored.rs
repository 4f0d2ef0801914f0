//! What the agent keeps in the store, and takes from it at its start.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Instant;

use peername_sys::event::epoll::Interest;
use peername_sys::process::stderr::try_write_line;

use super::{Agent, AgentError, RETRY_INTERVAL, Token};
use crate::agent::container::{Container, StoredContainer};
use crate::agent::descriptor_store::{
    DescriptorStore, Part, StoreEvent, StoredDescriptor, StoredName,
};

impl Agent {
    /// Takes over the containers of an earlier agent. What that did not store whole, or what the store has closed a part of, is removed.
    pub(super) fn adopt(&mut self, stored: Vec<StoredDescriptor>) {
        let mut found: HashMap<u64, StoredContainer> = HashMap::new();
        for StoredDescriptor { name, fd } in stored {
            if let StoredName::Container { number, part } = name {
                // No number is given twice, also where the rest of its container is gone.
                self.last = self.last.max(number);
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
                    for part in Part::ALL {
                        self.forget(StoredName::Container { number, part });
                    }
                }
            }
        }
    }

    /// Whether another agent takes over, which waits for the end of this one's connection to the store. Otherwise the store has ended.
    pub(super) fn is_taken_over(&mut self) -> bool {
        let event = self.store.as_mut().map(|store| store.next_event());
        if event == Some(StoreEvent::TakenOver) {
            return true;
        }
        self.store = None;
        self.reopen_at = Some(Instant::now());
        false
    }

    /// Opens the store again, and stores everything.
    pub(super) fn reopen_store(&mut self) -> Result<(), AgentError> {
        self.reopen_at = None;
        match self.host.reopen_store() {
            Ok(Some(store)) => {
                self.store = Some(store);
                self.watch_store()?;
                self.keep_socket();
                if let Some(store) = &mut self.store {
                    for (&number, container) in &self.containers {
                        keep_in(&mut **store, number, container);
                    }
                }
                try_write_line(
                    "peername: the holder of descriptors was killed; another one has them now",
                );
            }
            Ok(None) => self.reopen_at = Some(Instant::now() + RETRY_INTERVAL),
            Err(error) => {
                self.reopen_at = Some(Instant::now() + RETRY_INTERVAL);
                try_write_line(&format!(
                    "peername: the holder of descriptors was killed: {error}; containers fail if the agent dies"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn watch_store(&self) -> Result<(), AgentError> {
        let store = self.store.as_ref();
        match store.and_then(|store| store.events()) {
            Some(events) => Ok(self.epoll.add(events, Token::STORE, Interest::Readable)?),
            None => Ok(()),
        }
    }

    pub(super) fn keep_socket(&mut self) {
        if let Some(store) = &mut self.store {
            // Without it containers that are started between two agents fail to start, and say so.
            let _ = store.put(StoredName::Socket, self.socket.as_fd());
        }
    }

    pub(super) fn keep(&mut self, number: u64, container: &Container) {
        if let Some(store) = &mut self.store {
            keep_in(&mut **store, number, container);
        }
    }

    pub(super) fn forget(&mut self, name: StoredName) {
        if let Some(store) = &mut self.store {
            store.remove(name);
        }
    }
}

fn keep_in(store: &mut dyn DescriptorStore, number: u64, container: &Container) {
    for part in Part::ALL {
        let name = StoredName::Container { number, part };
        if let Err(error) = store.put(name, container.part(part)) {
            return try_write_line(&format!(
                "peername: container {}: its descriptors can't be kept ({error}), so it fails if the agent dies",
                container.id
            ));
        }
    }
}
