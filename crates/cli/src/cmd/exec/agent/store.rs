//! The store of the agent's descriptors: the service manager, or a holder process.

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
use peername_exec::agent::holder::{HolderConnection, OpenedHolder};
use peername_observe::shell::quote;
use peername_sys::ipc::listen_fds::{self, NamedDescriptor};
use peername_sys::process::stderr::try_write_line;

use super::options::Serve;

/// A store, and what an earlier agent has left in it.
pub(super) struct Opened {
    pub(super) store: Box<dyn DescriptorStore>,
    pub(super) stored: Vec<StoredDescriptor>,
}

/// The socket of the holder that an agent with the socket `listen` starts.
pub(super) fn holder_path(listen: &Path) -> PathBuf {
    let mut holder = OsString::from(listen);
    holder.push(".held");
    holder.into()
}

/// Waits until there is a store, and opens it as [`open`] does.
pub(super) fn wait_open(args: &Serve) -> anyhow::Result<Opened> {
    let mut is_logged = false;
    loop {
        if let Some(opened) = open(args)? {
            return Ok(opened);
        }
        if !is_logged && let Some(holder) = &args.holder {
            is_logged = true;
            let address = format!("unix:{}", holder.display());
            let command = quote(&address);
            try_write_line(&format!(
                "peername: waiting for the holder at {address} (`peername agent hold --holder {command}`)"
            ));
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Opens the store of the agent; `None` if there is none so far.
pub(super) fn open(args: &Serve) -> anyhow::Result<Option<Opened>> {
    if let Some(path) = &args.holder {
        return Ok(HolderConnection::connect(path)?.map(Opened::from));
    }
    if service_manager::has_store() {
        let stored = listen_fds::receive_any()?
            .into_iter()
            .filter_map(stored_by_manager)
            .collect();
        return Ok(Some(Opened {
            store: Box::new(ServiceManager),
            stored,
        }));
    }
    let path = holder_path(&args.listen);
    Ok(Some(HolderConnection::open(&path)?.into()))
}

/// Recognizes by its name a descriptor that an agent has stored. Others are logged and closed.
fn stored_by_manager(inherited: NamedDescriptor) -> Option<StoredDescriptor> {
    let NamedDescriptor { name, fd, .. } = inherited;
    match name.parse() {
        Ok(name) => Some(StoredDescriptor { name, fd }),
        Err(()) => {
            try_write_line(&format!(
                "peername: the service manager has passed {name:?}, which is no descriptor of an agent"
            ));
            None
        }
    }
}

impl From<OpenedHolder> for Opened {
    fn from(opened: OpenedHolder) -> Self {
        Self {
            store: Box::new(opened.connection),
            stored: opened.stored,
        }
    }
}

/// The descriptor store of the service manager (systemd.service(5), FileDescriptorStoreMax=).
#[derive(Debug)]
struct ServiceManager;

impl DescriptorStore for ServiceManager {
    fn put(&mut self, name: StoredName, fd: BorrowedFd<'_>) -> io::Result<()> {
        // The manager keeps all of one name. An earlier agent may have stored another socket.
        if name == StoredName::Socket {
            self.remove(name);
        }
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

const RETRY_INTERVAL: Duration = Duration::from_millis(100);
