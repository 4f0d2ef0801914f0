//! Decodes a call for the mediator of a jail.

use std::io;
use std::os::fd::RawFd;

use syscalls::Sysno;

use super::super::listener::Notification;
use crate::process::memory;

/// A call that the mediator makes for the program, or checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediatedCall {
    /// connect(2).
    Connect(AddressArgument),
    /// bind(2).
    Bind(AddressArgument),
    /// A call that changes the limits, the priority or the CPU affinity of another process or thread.
    ChangeProcess {
        /// The id of that process or thread in the caller's PID namespace.
        process: i32,
    },
}

/// A socket and an address, as connect(2) and bind(2) take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressArgument {
    /// The descriptor of the socket, in the program.
    pub socket: RawFd,
    tid: u32,
    address: u64,
    length: i32,
}

impl Notification {
    /// Decodes a call that was intercepted by [`confine_calls_with_mediator`](super::confine_calls_with_mediator).
    #[must_use]
    pub fn mediated_call(&self) -> MediatedCall {
        let [first, second, third, ..] = self.data.args;
        let address = AddressArgument {
            // Ints: the kernel ignores the upper halves.
            socket: first as RawFd,
            tid: self.tid,
            address: second,
            length: third as i32,
        };
        match self.call_name() {
            "connect" => MediatedCall::Connect(address),
            "bind" => MediatedCall::Bind(address),
            "setpriority" | "ioprio_set" => MediatedCall::ChangeProcess {
                process: second as i32,
            },
            _ => MediatedCall::ChangeProcess {
                process: first as i32,
            },
        }
    }

    fn call_name(&self) -> &'static str {
        let number = usize::try_from(self.data.nr).unwrap_or(usize::MAX);
        #[cfg(target_arch = "x86_64")]
        if self.data.arch == super::super::i386::AUDIT_ARCH {
            return syscalls::x86::Sysno::new(number).map_or("", |call| call.name());
        }
        Sysno::new(number).map_or("", |call| call.name())
    }
}

impl AddressArgument {
    /// Copies the address from the caller's memory: what the program writes there later has no effect.
    ///
    /// # Errors
    ///
    /// EINVAL for an address longer than `sockaddr_storage`, as in the kernel; EFAULT, ESRCH or EPERM where it can't be read.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        if length > size_of::<libc::sockaddr_storage>() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut bytes = vec![0; length];
        if length > 0 {
            memory::read(self.tid, self.address, &mut bytes)?;
        }
        Ok(bytes)
    }
}
