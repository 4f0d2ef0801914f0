//! Tries, at the start, each interface of the kernel that the supervisor needs later. Otherwise clients would be the first to
//! notice that a sandbox denies one.
//!
//! A child process tries them, because a seccomp filter may answer a call by ending the process (`SystemCallFilter=` without
//! `SystemCallErrorNumber=`, systemd.exec(5)).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use peername_identity::SocketListing;
use peername_sys::ipc::fd_passing;
use peername_sys::ipc::shared_memory::{create_anonymous, lock_shared};
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::process::{fork, memory};
use peername_sys::seccomp::{self, Getsockname};
use peername_sys::{Errno, NameCall, SyscallError};

use crate::notify::drop_capabilities;
use crate::sockets::find_listing;

/// An error returned by [`check`].
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// An interface is missing.
    #[error("{}: {why}. {}; {}", interface.name, interface.purpose, interface.remedy())]
    Missing {
        /// The interface.
        interface: &'static Interface,
        /// The kernel's error, or the exit status of the process that tried the interface.
        why: String,
    },
    /// The child can't be started.
    #[error("trying the kernel's interfaces: {0}")]
    Child(#[from] SyscallError),
}

/// An interface of the kernel.
#[derive(Debug)]
pub struct Interface {
    name: &'static str,
    purpose: &'static str,
    /// Whether processes with the library are served without the interface.
    is_dispensable: bool,
    attempt: fn() -> peername_sys::Result<()>,
}

impl Interface {
    /// What may allow the interface. A unit without a filter must not get one: it would allow that call alone.
    fn remedy(&self) -> String {
        match self.name.strip_suffix("(2)") {
            Some(call) => format!(
                "if the unit has a SystemCallFilter=, add SystemCallFilter={call} (systemd.exec(5)); in a container, let the \
                 runtime's filter allow it"
            ),
            None => "in a unit: RestrictAddressFamilies=AF_NETLINK (systemd.exec(5))".to_owned(),
        }
    }
}

/// The result of [`check`].
#[derive(Debug)]
pub struct Interfaces {
    /// The way in which sockets can be listed.
    pub listing: SocketListing,
    /// The interfaces that are missing for processes without the library.
    pub missing: Vec<InterfaceError>,
}

/// Tries all interfaces. With `has_library` the processes of the program have the library, so that some interfaces may be
/// missing. The calling process must have one thread only.
pub fn check(has_library: bool) -> Result<Interfaces, InterfaceError> {
    let mut missing = Vec::new();
    let mut untried: Vec<&'static Interface> = INTERFACES.iter().collect();
    loop {
        match try_in_child(&untried)? {
            TrialResult::NoneMissing(listing) => return Ok(Interfaces { listing, missing }),
            TrialResult::Missing { interface, why } => {
                let error = InterfaceError::Missing { interface, why };
                if !(has_library && interface.is_dispensable) {
                    return Err(error);
                }
                untried.retain(|other| other.name != interface.name);
                missing.push(error);
            }
        }
    }
}

enum TrialResult {
    NoneMissing(SocketListing),
    Missing {
        interface: &'static Interface,
        why: String,
    },
}

/// Tries these interfaces and [`SOCKET_LISTING`] in a child process, which reports each step. The last interface that it has
/// announced is the missing one.
fn try_in_child(interfaces: &[&'static Interface]) -> peername_sys::Result<TrialResult> {
    let (ours, theirs) = fd_passing::seqpacket_pair()?;
    let child = fork::fork_child([theirs], |[parent]| {
        // The parent reports what is missing.
        let _ = try_all(&parent, interfaces);
        0
    })?;
    let (mut interface, mut errno, mut listing) = (&SOCKET_LISTING, None, None);
    while let Some((word, _)) = fd_passing::receive_word(&ours)? {
        let value = word & 0xffff_ffff;
        match word >> 32 {
            TRYING => {
                let index = usize::try_from(value).unwrap_or(usize::MAX);
                interface = interfaces.get(index).copied().unwrap_or(&SOCKET_LISTING);
            }
            FAILED => errno = i32::try_from(value).ok(),
            _ => listing = Some(SocketListing::from_word(value)),
        }
    }
    let status = fork::wait_exit(child)?;
    if let Some(listing) = listing {
        return Ok(TrialResult::NoneMissing(listing));
    }
    let why = match errno {
        Some(errno) => io::Error::from_raw_os_error(errno).to_string(),
        None => format!("the process that tried it has ended, {status}"),
    };
    Ok(TrialResult::Missing { interface, why })
}

/// Runs in the child: announces each attempt, then sends its error or, at the end, the result.
fn try_all(parent: &OwnedFd, interfaces: &[&'static Interface]) -> peername_sys::Result<()> {
    for (index, interface) in (0..).zip(interfaces) {
        fd_passing::send_word(parent, TRYING << 32 | index, None)?;
        send_error(parent, (interface.attempt)())?;
    }
    fd_passing::send_word(parent, TRYING << 32 | interfaces.len() as u64, None)?;
    let listing = send_error(parent, find_listing())?;
    fd_passing::send_word(parent, LISTING << 32 | listing.to_word(), None)
}

/// Sends the error of an attempt, if it has failed.
fn send_error<T>(parent: &OwnedFd, attempted: peername_sys::Result<T>) -> peername_sys::Result<T> {
    if let Err(error) = &attempted {
        let errno = error
            .errno()
            .unwrap_or(Errno::IO.raw_os_error())
            .cast_unsigned();
        fd_passing::send_word(parent, FAILED << 32 | u64::from(errno), None)?;
    }
    attempted
}

static INTERFACES: [Interface; 9] = [
    Interface {
        name: "memfd_create(2)",
        purpose: "The supervisor records by it the calls that it answers",
        is_dispensable: false,
        attempt: || create_trial_memory().map(drop),
    },
    Interface {
        name: "flock(2)",
        purpose: "The table of clients is marked by it as in use",
        is_dispensable: false,
        attempt: || lock_shared(create_trial_memory()?),
    },
    Interface {
        name: "pidfd_open(2)",
        purpose: "The supervisor opens the program's processes by it",
        is_dispensable: false,
        attempt: || PidFd::current().map(drop),
    },
    Interface {
        name: "pidfd_getfd(2)",
        purpose: "The supervisor accepts at the program's own sockets by it",
        is_dispensable: true,
        attempt: copy_own_descriptor,
    },
    Interface {
        name: "pidfd_send_signal(2)",
        purpose: "A program that can't be served any more is ended by it",
        is_dispensable: false,
        attempt: || PidFd::current()?.signal(Signal::CONT),
    },
    Interface {
        name: "process_vm_readv(2)",
        purpose: "The supervisor reads the arguments of accept(2) by it",
        is_dispensable: true,
        attempt: read_own_memory,
    },
    Interface {
        name: "process_vm_writev(2)",
        purpose: "The supervisor writes the client's address by it",
        is_dispensable: true,
        attempt: write_own_memory,
    },
    Interface {
        name: "seccomp(2)",
        purpose: "Each accept(2) goes through the library or the supervisor by it (--mode netns does without)",
        is_dispensable: false,
        attempt: install_filter,
    },
    // Last, because the others may need the capabilities.
    Interface {
        name: "capset(2)",
        purpose: "The supervisor drops the capabilities that it does not need by it",
        is_dispensable: false,
        attempt: drop_capabilities,
    },
];
static SOCKET_LISTING: Interface = Interface {
    name: "netlink(7), and /proc/thread-self/net/tcp",
    purpose: "Closed connections are found by one of them",
    is_dispensable: false,
    attempt: || find_listing().map(drop),
};

fn create_trial_memory() -> peername_sys::Result<OwnedFd> {
    create_anonymous("peername-trial", 0)
}

fn copy_own_descriptor() -> peername_sys::Result<()> {
    let (end, _other) = fd_passing::seqpacket_pair()?;
    PidFd::current()?.get_fd(end.as_raw_fd()).map(drop)
}

fn read_own_memory() -> peername_sys::Result<()> {
    let (from, mut to) = ([7_u8], [0]);
    let address = from.as_ptr().expose_provenance() as u64;
    memory::read(std::process::id(), address, &mut to).call("process_vm_readv(2)")
}

fn write_own_memory() -> peername_sys::Result<()> {
    let mut to = [0_u8; 2];
    let address = to.as_mut_ptr().expose_provenance() as u64;
    let pieces: [(u64, &[u8]); 2] = [(address, &[7]), (address + 1, &[7])];
    memory::write(std::process::id(), pieces).call("process_vm_writev(2)")
}

/// Installs the filter in the child, which accepts nothing. Errors other than a missing permission or call, such as EBUSY, are
/// reported by the launcher when it installs the filter itself.
fn install_filter() -> peername_sys::Result<()> {
    match seccomp::install(Getsockname::Allow, None) {
        Err(error)
            if error.is_permission() || error.errno() == Some(Errno::NOSYS.raw_os_error()) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

// The kinds of messages from the child, in the upper half of a word. The lower half is an index, an errno or a listing.
const TRYING: u64 = 1;
const FAILED: u64 = 2;
const LISTING: u64 = 3;
