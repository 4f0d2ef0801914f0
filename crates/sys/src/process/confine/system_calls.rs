//! The system calls that this process may make (seccomp(2)).

use std::collections::BTreeMap;
use std::io;

use rustix::process::getpid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use super::denied_call;
use crate::{NameCall, Result};

/// Names and numbers of the system calls of this architecture.
pub use syscalls::Sysno;

/// An allow-list of system calls. Calls that are not in it kill the process, with a line on standard error.
///
/// Calls that are allowed without a condition cost almost nothing: since Linux 5.11 the kernel keeps a bitmap of them, and
/// runs the filter only for the others.
#[derive(Clone, Debug, Default)]
pub struct AllowedCalls {
    allowed: Rules,
    /// Those of the allowed calls that fail with ENOSYS.
    absent: Rules,
}

/// Conditions by the number of the call. With none, the call is allowed whatever its arguments are.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The kinds of sockets that may be opened. Neither has raw sockets or packet sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFamilies {
    /// TCP and UDP, over IPv4 and IPv6, and netlink.
    Network,
    /// The same, and Unix sockets.
    NetworkAndUnix,
}

impl AllowedCalls {
    /// Allows these calls, whatever their arguments are.
    pub fn allow(&mut self, calls: &[Sysno]) {
        self.allowed
            .extend(calls.iter().map(|&call| (number(call), Vec::new())));
    }

    /// Makes these calls fail with ENOSYS, as in a kernel that lacks them, for callers that have a fallback.
    pub fn deny_as_absent(&mut self, calls: &[Sysno]) {
        self.insert_absent(calls.iter().map(|&call| number(call)));
    }

    /// Makes calls that are newer than the table of [`Sysno`] fail with ENOSYS: a newer C library tries such calls, and has
    /// to run on older kernels too.
    pub fn deny_newer_as_absent(&mut self) {
        let first = number(Sysno::last()) + 1;
        self.insert_absent(first..first + MAX_NEWER_CALLS);
    }

    fn insert_absent(&mut self, numbers: impl IntoIterator<Item = i64>) {
        for number in numbers {
            self.allowed.insert(number, Vec::new());
            self.absent.insert(number, Vec::new());
        }
    }

    /// Allows new threads in this process, and no new process. clone3(2) has its flags in memory, where a filter can't check
    /// them; the C library uses clone(2) instead if clone3(2) is absent.
    pub fn allow_threads(&mut self) {
        let flags =
            libc::CLONE_THREAD | libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
        let flags = Check::masked(0, flags, libc::CLONE_THREAD);
        self.allow_if(Sysno::clone, [vec![flags]]);
        self.deny_as_absent(&[Sysno::clone3]);
    }

    /// Allows signals to this process's own threads: abort(3).
    pub fn allow_signals_to_itself(&mut self) {
        let own = getpid().as_raw_nonzero().get();
        self.allow_if(Sysno::tgkill, [vec![Check::equal(0, own)]]);
        // musl's abort(3) names the thread only.
        self.allow_if(Sysno::tkill, [vec![Check::equal(1, libc::SIGABRT)]]);
    }

    /// Allows sockets of these families.
    pub fn allow_sockets(&mut self, families: SocketFamilies) {
        let kinds = [
            (libc::AF_INET, libc::SOCK_STREAM),
            (libc::AF_INET, libc::SOCK_DGRAM),
            (libc::AF_INET6, libc::SOCK_STREAM),
            (libc::AF_INET6, libc::SOCK_DGRAM),
            (libc::AF_NETLINK, libc::SOCK_RAW),
            (libc::AF_NETLINK, libc::SOCK_DGRAM),
        ];
        let checks = kinds.map(|(family, kind)| {
            vec![
                Check::equal(0, family),
                Check::masked(1, SOCK_TYPE_MASK, kind),
            ]
        });
        let unix = match families {
            SocketFamilies::Network => None,
            SocketFamilies::NetworkAndUnix => Some(vec![Check::equal(0, libc::AF_UNIX)]),
        };
        self.allow_if(Sysno::socket, checks.into_iter().chain(unix));
    }

    /// Allows raw sockets that send and never receive (IPPROTO_RAW).
    pub fn allow_sending_raw_packets(&mut self) {
        let checks = [libc::AF_INET, libc::AF_INET6].map(|family| {
            vec![
                Check::equal(0, family),
                Check::masked(1, SOCK_TYPE_MASK, libc::SOCK_RAW),
                Check::equal(2, libc::IPPROTO_RAW),
            ]
        });
        self.allow_if(Sysno::socket, checks);
    }

    /// Allows memory to be mapped and protected, but not as executable code.
    pub fn allow_data_mappings(&mut self) {
        for call in [Sysno::mmap, Sysno::mprotect] {
            let data = Check::masked(2, libc::PROT_EXEC, 0);
            self.allow_if(call, [vec![data]]);
        }
    }

    /// Allows the ioctl(2) commands that report or set the state of this process's own sockets, pipes and terminals. TIOCSTI,
    /// which types into a terminal, is not among them.
    pub fn allow_descriptor_ioctls(&mut self) {
        let commands = [
            libc::FIONBIO,
            libc::FIONREAD,
            libc::TIOCOUTQ,
            libc::TCGETS,
            libc::TCGETS2,
            libc::TIOCGWINSZ,
        ];
        let commands = commands.map(|command| vec![Check::equal(1, command as i32)]);
        self.allow_if(Sysno::ioctl, commands);
    }

    /// Allows prctl(2) to name threads and mappings, and to read a thread's state.
    pub fn allow_harmless_prctls(&mut self) {
        let options = [
            libc::PR_SET_NAME,
            libc::PR_GET_NAME,
            libc::PR_SET_VMA,
            libc::PR_CAPBSET_READ,
            libc::PR_GET_NO_NEW_PRIVS,
            libc::PR_GET_DUMPABLE,
            PR_GET_AUXV,
        ];
        let options = options.map(|option| vec![Check::equal(0, option)]);
        self.allow_if(Sysno::prctl, options);
    }

    /// Allows the limits of this process to be read and changed.
    pub fn allow_own_limits(&mut self) {
        self.allow_if(Sysno::prlimit64, [vec![Check::equal(0, 0)]]);
    }

    /// Allows the entries of eBPF maps to be read and changed. Programs can't be loaded, nor maps created.
    pub fn allow_bpf_maps(&mut self) {
        let commands = BPF_MAP_COMMANDS.map(|command| vec![Check::equal(0, command)]);
        self.allow_if(Sysno::bpf, commands);
    }

    /// Allows a call if all checks of one of the alternatives hold.
    fn allow_if(&mut self, call: Sysno, alternatives: impl IntoIterator<Item = Vec<Check>>) {
        let rules = alternatives.into_iter().filter_map(|checks| {
            let conditions = checks.into_iter().filter_map(Check::condition).collect();
            // Never an error: no rule is empty, and no check is of argument 6.
            SeccompRule::new(conditions).ok()
        });
        self.allowed.entry(number(call)).or_default().extend(rules);
    }

    /// Compiles the list for this architecture.
    ///
    /// # Errors
    ///
    /// The filter is longer than the kernel allows, or the compiler does not know this architecture.
    pub fn compile(self) -> Result<CallFilter> {
        Ok(CallFilter {
            absent: compile(
                self.absent,
                SeccompAction::Allow,
                SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
            )?,
            allowed: compile(self.allowed, SeccompAction::Trap, SeccompAction::Allow)?,
        })
    }
}

/// A compiled [`AllowedCalls`].
#[derive(Debug)]
pub struct CallFilter {
    absent: BpfProgram,
    allowed: BpfProgram,
}

impl CallFilter {
    /// Restricts this process to the list, irrevocably. Sets `no_new_privs`.
    ///
    /// Returns whether it did: a kernel may lack seccomp(2), or a sandbox deny it.
    pub fn enforce(&self) -> Result<bool> {
        denied_call::install_handler()?;
        // Of two filters, the stricter result counts. `allowed` is installed last, because it denies seccomp(2).
        Ok(apply_filter(&self.absent).is_ok() && apply_filter(&self.allowed).is_ok())
    }
}

/// Whether this kernel has filters of system calls, and this process may install one.
pub fn is_supported() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: this command reads the action, which lives across the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    rc == 0
}

fn compile(rules: Rules, otherwise: SeccompAction, listed: SeccompAction) -> Result<BpfProgram> {
    std::env::consts::ARCH
        .try_into()
        .and_then(|arch| SeccompFilter::new(rules, otherwise, listed, arch))
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
        .call("compiling the system call filter")
}

fn number(call: Sysno) -> i64 {
    i64::from(call.id())
}

/// A check of an argument: its bits in `mask` have this value. Only the lower half of the argument is compared, because the
/// kernel reads these arguments as ints.
struct Check {
    argument: u8,
    mask: u32,
    value: i32,
}

impl Check {
    fn equal(argument: u8, value: i32) -> Self {
        Self {
            argument,
            mask: u32::MAX,
            value,
        }
    }

    fn masked(argument: u8, mask: i32, value: i32) -> Self {
        Self {
            argument,
            mask: mask.cast_unsigned(),
            value,
        }
    }

    fn condition(self) -> Option<SeccompCondition> {
        let mask = SeccompCmpOp::MaskedEq(self.mask.into());
        let value = u64::from(self.value.cast_unsigned());
        SeccompCondition::new(self.argument, SeccompCmpArgLen::Dword, mask, value).ok()
    }
}

/// Calls that a kernel may have beyond the table: about those of five years. Each makes the filter longer, which slows calls
/// that are allowed with a condition, such as socket(2).
const MAX_NEWER_CALLS: i64 = 32;
/// From `linux/net.h`: the lower bits of a socket's type, without SOCK_NONBLOCK and SOCK_CLOEXEC.
const SOCK_TYPE_MASK: i32 = 0xf;
/// From `linux/prctl.h`.
const PR_GET_AUXV: i32 = 0x4155_5856;
/// BPF_MAP_LOOKUP_ELEM, _UPDATE_ELEM, _DELETE_ELEM, _GET_NEXT_KEY, and the commands for batches (`linux/bpf.h`).
const BPF_MAP_COMMANDS: [i32; 8] = [1, 2, 3, 4, 24, 25, 26, 27];
