//! Where the agent's descriptors are kept: by the service manager, or by a process of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use peername_daemon::service_manager;
use peername_exec::agent::descriptor_store::{
    DescriptorStore, StoreEvent, StoredDescriptor, StoredName,
};
use peername_exec::agent::holder::Holder;
use peername_sys::ipc::listen_fds;

/// A store, and what an earlier agent has left in it.
pub(super) struct Opened {
    pub(super) store: Box<dyn DescriptorStore>,
    pub(super) stored: Vec<StoredDescriptor>,
}

/// Opens the store of the agent whose socket is at `path`.
///
/// # Errors
///
/// There is none.
pub(super) fn open(path: &Path) -> anyhow::Result<Opened> {
    if service_manager::is_there() {
        let all = listen_fds::receive_any()?.into_iter();
        // A socket unit passes its socket by another name.
        let stored = all.map(|inherited| StoredDescriptor {
            name: inherited.name.parse().unwrap_or(StoredName::Socket),
            fd: inherited.fd,
        });
        return Ok(Opened {
            store: Box::new(ServiceManager),
            stored: stored.collect(),
        });
    }
    let mut holder = OsString::from(path);
    holder.push(".held");
    let (holder, stored) = Holder::open(Path::new(&holder))?;
    Ok(Opened {
        store: Box::new(holder),
        stored,
    })
}

/// The descriptor store of the service manager (systemd.service(5), FileDescriptorStoreMax=).
#[derive(Debug)]
struct ServiceManager;

impl DescriptorStore for ServiceManager {
    fn put(&mut self, name: StoredName, fd: BorrowedFd<'_>) -> io::Result<()> {
        service_manager::store(&name.to_string(), fd)
    }

    fn remove(&mut self, name: StoredName) {
        service_manager::drop_stored(&name.to_string());
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_event(&mut self) -> StoreEvent {
        StoreEvent::Ended
    }
}
