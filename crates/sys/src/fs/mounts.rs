//! Mounts in the calling process's mount namespace (mount(2)). The process has to have a mount namespace of its own, so that
//! other processes still see what the mounts cover. All functions need CAP_SYS_ADMIN over the namespace, and fail with EPERM
//! without it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
};

use crate::error::checked;
use crate::{NameCall, Result};

/// Binds the file or directory `source` over `target`. Symbolic links are followed.
///
/// # Errors
///
/// ENOENT or EACCES where either does not exist or can't be reached, ENOTDIR where one is a directory and the other is not,
/// ENOSPC beyond `fs.mount-max`.
pub fn bind_over(target: &Path, source: &Path) -> Result<()> {
    mount_bind(source, target).call("mount(MS_BIND)")
}

/// Binds `source`, and everything mounted below it, over `target`.
pub fn bind_recursively_over(target: &Path, source: &Path) -> Result<()> {
    mount_bind_recursive(source, target).call("mount(MS_BIND|MS_REC)")
}

/// Mounts an empty tmpfs of at most `bytes` on the directory `target`. `mode` is the mode of its root.
pub fn mount_tmpfs(target: &Path, mode: u32, bytes: usize) -> Result<()> {
    let options = CString::new(format!("mode={mode:o},size={bytes}"));
    let options = options.map_err(io::Error::other).call("mount(tmpfs)")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", target, "tmpfs", flags, options.as_c_str()).call("mount(tmpfs)")
}

/// Keeps mounts and unmounts in other namespaces from reaching this one (MS_PRIVATE).
pub fn make_private() -> Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).call("mount(MS_PRIVATE)")
}

/// Lets mounts that are made in this namespace from now on reach the namespaces that are copied from it into another user
/// namespace (MS_SHARED; the copies are MS_SLAVE).
pub fn make_shared() -> Result<()> {
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", flags).call("mount(MS_SHARED)")
}

/// Makes `target` and everything mounted below it read-only in this namespace (mount_setattr(2), since Linux 5.12). Where
/// `target` is no mount, it becomes one.
///
/// # Errors
///
/// Those of [`bind_over`]; ENOSYS before Linux 5.12.
pub fn make_read_only(target: &Path) -> Result<()> {
    mount_bind_recursive(target, target).call("mount(MS_BIND|MS_REC)")?;
    let path = CString::new(target.as_os_str().as_bytes());
    let path = path.map_err(io::Error::other).call("mount_setattr(2)")?;
    let read_only = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path ends in a zero, and the struct is as long as stated; the kernel reads both.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const read_only,
            size_of::<libc::mount_attr>(),
        )
    };
    checked(rc).map(drop).call("mount_setattr(2)")
}
