//! Error numbers of system calls.

use core::ffi::c_int;

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

// The same on both architectures (asm-generic).
impl Errno {
    /// ENOENT.
    pub const NOENT: Self = Self(2);
    /// EINTR.
    pub const INTR: Self = Self(4);
    /// EAGAIN.
    pub const AGAIN: Self = Self(11);
    /// EACCES.
    pub const ACCES: Self = Self(13);
    /// EFAULT.
    pub const FAULT: Self = Self(14);
    /// EINVAL.
    pub const INVAL: Self = Self(22);
    /// ENFILE.
    pub const NFILE: Self = Self(23);
    /// EMFILE.
    pub const MFILE: Self = Self(24);
    /// ENOSYS.
    pub const NOSYS: Self = Self(38);
    /// EMSGSIZE.
    pub const MSGSIZE: Self = Self(90);
    /// EOPNOTSUPP.
    pub const OPNOTSUPP: Self = Self(95);
    /// ENOBUFS.
    pub const NOBUFS: Self = Self(105);
    /// EALREADY.
    pub const ALREADY: Self = Self(114);
    /// EINPROGRESS.
    pub const INPROGRESS: Self = Self(115);
}

/// The result of a system call.
pub type Result<T> = core::result::Result<T, Errno>;
