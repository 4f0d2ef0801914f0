//! Every system call of the workspace, behind safe functions.
//!
//! The rest of peername forbids `unsafe`; what needs it stands here, one file an idea, so that it can
//! be read in one sitting. Borrowed descriptors go in, owned ones come out, and every error names
//! the call that failed ([`Failed`]). Nothing in this crate decides anything: policy lives above.

mod failed;

pub mod bequest;
pub mod caps;
pub mod clock;
pub mod core_dump;
pub mod datagram;
pub mod dead_man;
pub mod detach;
pub mod epoll;
pub mod executable;
pub mod inherited;
pub mod io_uring;
pub mod limits;
pub mod listen;
pub mod listening;
pub mod namespace;
pub mod netlink;
pub mod passing;
pub mod pidfd;
pub mod pipe;
pub mod poll;
pub mod process_memory;
pub mod random;
pub mod readiness;
pub mod receiving;
pub mod redirected;
pub mod resolve;
pub mod seccomp;
pub mod shared_memory;
pub mod sock_diag;
pub mod stderr;
pub mod stream;
pub mod tcp_socket;
pub mod text_file;
pub mod transparent;
pub mod upstream;
pub mod user;

pub use failed::{
    Errno, Failed, NameCall, Result, is_broken_listener, is_destroyed, is_device_error,
    is_exhaustion, is_of_one_connection, is_too_large,
};

/// The kernel's version, as uname(2) has it: `6.1.0-13-amd64`.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}
