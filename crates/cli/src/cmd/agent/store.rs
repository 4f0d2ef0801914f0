//! Where the agent's descriptors are kept: by the service manager, or by a process of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use peername_daemon::service_manager;
use peername_exec::agent::descriptor_store::{
    DescriptorStore, StoreEvent, StoredDescriptor, StoredName,
};
use peername_exec::agent::holder::Holder;
use peername_sys::ipc::listen_fds;

use super::options::Serve;

/// A store, and what an earlier agent has left in it.
pub(super) struct Opened {
    pub(super) store: Box<dyn DescriptorStore>,
    pub(super) stored: Vec<StoredDescriptor>,
}

/// The socket of the holder that an agent with the socket at `path` starts.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut holder = OsString::from(path);
    holder.push(".held");
    holder.into()
}

/// The same as [`open`], once there is a store.
///
/// # Errors
///
/// As [`open`].
pub(super) fn wait_open(args: &Serve) -> anyhow::Result<Opened> {
    loop {
        match open(args)? {
            Some(opened) => return Ok(opened),
            None => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Opens the store of the agent; `None` if there is none so far.
///
/// # Errors
///
/// It can't be opened.
pub(super) fn open(args: &Serve) -> anyhow::Result<Option<Opened>> {
    let of_holder = |(holder, stored)| Opened {
        store: Box::new(holder),
        stored,
    };
    if let Some(path) = &args.holder {
        return Ok(Holder::connect(path)?.map(of_holder));
    }
    if service_manager::is_there() {
        let all = listen_fds::receive_any()?.into_iter();
        // A socket unit passes its socket by another name.
        let stored = all.map(|inherited| StoredDescriptor {
            name: inherited.name.parse().unwrap_or(StoredName::Socket),
            fd: inherited.fd,
        });
        return Ok(Some(Opened {
            store: Box::new(ServiceManager),
            stored: stored.collect(),
        }));
    }
    Ok(Some(of_holder(Holder::open(&beside(&args.listen))?)))
}

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

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
