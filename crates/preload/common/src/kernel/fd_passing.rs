//! Passing descriptors over a Unix socket (unix(7), SCM_RIGHTS).

use core::ffi::{c_int, c_void};
use core::ptr;

use syscalls::{Sysno, syscall};

use super::call::{MSG_DONTWAIT, MSG_NOSIGNAL, Result, SOL_SOCKET};

/// Sends bytes over a Unix socket, with at most [`MAX_PASSED`] descriptors, without blocking.
pub fn send_descriptors(fd: c_int, bytes: &[u8], passed: &[c_int]) -> Result<usize> {
    let mut control = ControlMessage {
        len: ControlMessage::len_with(passed.len().min(MAX_PASSED)),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptors: [-1; MAX_PASSED],
    };
    for (to, &descriptor) in control.descriptors.iter_mut().zip(passed) {
        *to = descriptor;
    }
    let buffer = IoVec {
        start: bytes.as_ptr() as usize,
        len: bytes.len(),
    };
    let mut message = MsgHdr::new(&buffer, &mut control);
    if passed.is_empty() {
        message.control_len = 0;
    }
    let flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    // SAFETY: the message points to one buffer and one control message, which live across the call and which the kernel
    // only reads.
    unsafe { syscall!(Sysno::sendmsg, fd, &raw const message, flags) }
}

/// Receives bytes and, if one was passed, a descriptor. Returns the number of bytes.
pub fn receive_descriptor(
    fd: c_int,
    bytes: &mut [u8],
    flags: c_int,
) -> Result<(usize, Option<c_int>)> {
    let mut control = ControlMessage {
        len: 0,
        level: 0,
        kind: 0,
        descriptors: [-1; MAX_PASSED],
    };
    let buffer = IoVec {
        start: bytes.as_mut_ptr() as usize,
        len: bytes.len(),
    };
    let mut message = MsgHdr::new(&buffer, &mut control);
    // SAFETY: as above; the kernel writes at most `bytes.len()` bytes and one control message.
    let n = unsafe { syscall!(Sysno::recvmsg, fd, &raw mut message, flags) }?;
    let has_rights = (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    let is_single = control.len == ControlMessage::len_with(1);
    let [first, ..] = control.descriptors;
    Ok((n, (has_rights && is_single).then_some(first)))
}

/// `struct msghdr`.
#[repr(C)]
struct MsgHdr {
    name: usize,
    name_len: u32,
    buffers: *const IoVec,
    buffer_count: usize,
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}

impl MsgHdr {
    fn new(buffer: &IoVec, control: &mut ControlMessage) -> Self {
        Self {
            name: 0,
            name_len: 0,
            buffers: buffer,
            buffer_count: 1,
            control: ptr::from_mut(control).cast(),
            control_len: size_of::<ControlMessage>(),
            flags: 0,
        }
    }
}

/// `struct iovec`.
#[repr(C)]
struct IoVec {
    start: usize,
    len: usize,
}

/// `struct cmsghdr` with descriptors.
#[repr(C)]
struct ControlMessage {
    len: usize,
    level: c_int,
    kind: c_int,
    descriptors: [c_int; MAX_PASSED],
}

impl ControlMessage {
    /// CMSG_LEN of a message with this number of descriptors.
    const fn len_with(descriptors: usize) -> usize {
        size_of::<c_int>()
            .saturating_mul(descriptors)
            .saturating_add(core::mem::offset_of!(Self, descriptors))
    }
}

/// The maximum number of descriptors of a message. It is even, so that `ControlMessage` needs no padding.
pub const MAX_PASSED: usize = 2;

const SCM_RIGHTS: c_int = 1;
