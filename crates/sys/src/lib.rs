//! The system calls of the workspace, behind safe functions.
//!
//! Code that needs `unsafe` is here, one file per idea, so that it can be audited in one sitting; only the preloaded libraries
//! have such code of their own. Borrowed descriptors go in, owned ones come out, and errors name the call that failed
//! ([`SyscallError`]) where a caller can't know it. This crate contains no policy.

mod error;

pub mod clock;
pub mod event;
pub mod fs;
pub mod ipc;
pub mod netlink;
pub mod process;
pub mod random;
pub mod resolve;
pub mod seccomp;
pub mod socket;
pub mod tcp;
pub mod throttle;
pub mod udp;

pub use error::{
    Errno, NameCall, Result, SyscallError, is_broken_listener, is_destroyed, is_device_error,
    is_exhaustion, is_out_of_descriptors, is_per_connection_error, is_too_large,
};
pub use socket::Transport;

/// This host's name as uname(2) reports it.
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// The kernel's release as uname(2) reports it: `6.1.0-13-amd64`.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}
