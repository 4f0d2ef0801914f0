//! Errors of loading and attaching the kernel's program.

use std::io;

use aya::EbpfError;
use aya::programs::ProgramError;

/// The reason why the kernel can't carry flows.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object or its maps could not be loaded.
    #[error(
        "creating the maps of the kernel data path, which needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN at the start"
    )]
    Load(#[from] EbpfError),
    /// The kernel (its verifier) rejected the program.
    #[error(
        "loading the data path into the kernel, which needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN at the start"
    )]
    Refused(#[from] ProgramError),
    /// The program could not be attached to a device.
    #[error(
        "attaching the data path to {device}, which needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN at the start"
    )]
    Attach {
        /// Name of the device.
        device: String,
        /// The kernel's error.
        #[source]
        error: ProgramError,
    },
    /// A sysctl of loopback could not be set.
    #[error(
        "writing {value} to {setting}, for the kernel data path; if /proc/sys is read-only here, set this sysctl on the host"
    )]
    Setting {
        /// The path of the sysctl.
        setting: &'static str,
        /// The required value.
        value: &'static str,
        /// The error of write(2).
        #[source]
        error: io::Error,
    },
    /// The object lacks a program or map that this loader expects.
    #[error("the kernel's program lacks {0}: a bug of peername's")]
    Missing(&'static str),
}
