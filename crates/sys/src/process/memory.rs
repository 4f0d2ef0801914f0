//! Reading and writing another process's memory: the arguments of its system calls.
//!
//! Uses process_vm_readv(2) and process_vm_writev(2), which respect the protection of pages: a write to a read-only buffer
//! fails with EFAULT, as the system call would. A write through /proc/PID/mem would succeed. Both calls need ptrace(2)
//! permission over the process.

use std::io;
use std::ptr;

/// Fills `into` from `address` in the process of thread `tid`.
///
/// # Errors
///
/// EFAULT where not all of the memory is readable, ESRCH where the thread has exited, EPERM without permission.
pub fn read(tid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = remote(address, into.len())?;
    // SAFETY: the local vector is `into`, which is borrowed mutably with its length; the kernel checks the
    // remote one.
    let n = unsafe {
        libc::process_vm_readv(
            tid.cast_signed(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    check_complete(n, into.len())
}

/// Writes two pieces, each to its address in the process of thread `tid`, in this order.
///
/// # Errors
///
/// Those of [`read`]; a part may have been written.
pub fn write(tid: u32, pieces: [(u64, &[u8]); 2]) -> io::Result<()> {
    let local = pieces.map(|(_, bytes)| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    });
    let [(first, a), (second, b)] = pieces;
    let remote = [remote(first, a.len())?, remote(second, b.len())?];
    // SAFETY: the local vectors are the pieces, which are only read; the kernel checks the remote ones.
    let n = unsafe {
        libc::process_vm_writev(tid.cast_signed(), local.as_ptr(), 2, remote.as_ptr(), 2, 0)
    };
    check_complete(n, a.len() + b.len())
}

fn remote(address: u64, len: usize) -> io::Result<libc::iovec> {
    let address = usize::try_from(address).map_err(|_| fault())?;
    Ok(libc::iovec {
        iov_base: ptr::without_provenance_mut(address),
        iov_len: len,
    })
}

/// Checks that a call has transferred all bytes: it stops at the first page that it can't access.
fn check_complete(n: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n == wanted => Ok(()),
        Ok(_) => Err(fault()),
    }
}

fn fault() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_read_and_written_and_the_rest_is_efault() {
        let own = std::process::id();
        let mut target = [1_u8, 2, 3, 4];
        let address = target.as_mut_ptr().expose_provenance() as u64;
        let mut copy = [0; 4];
        read(own, address, &mut copy).unwrap();
        assert_eq!(copy, [1, 2, 3, 4]);
        write(own, [(address, &[5]), (address + 1, &[6])]).unwrap();
        assert_eq!(std::hint::black_box(target), [5, 6, 3, 4]);
        let error = read(own, 8, &mut copy).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        let text = c"constant".as_ptr().addr() as u64;
        let error = write(own, [(address, &[5]), (text, &[0])]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "read-only memory");
    }
}
