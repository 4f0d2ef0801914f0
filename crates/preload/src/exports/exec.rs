//! exec(3) and posix_spawn(3), with the library added to the environment ([`propagation`](crate::propagation)).
//!
//! The C library's functions call each other directly and not through this library, so each one is replaced. Not
//! intercepted: system(3), popen(3) and wordexp(3), which pass on the environment of this process, and bare system calls.
#![expect(
    clippy::missing_safety_doc,
    reason = "each function has the contract of the one that it replaces"
)]

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use peername_preload_common::imports::{entries, environ, syscall_ret};
use peername_preload_common::kernel::{self, Sysno};

use crate::imports;
use crate::propagation::Environment;
use crate::state::{State, state};

type Text = *const c_char;
type List = *const Text;

/// execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: Text, args: List, environment: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { execute(path, args, environment) }
}

/// execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: Text, args: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { execute(path, args, environ()) }
}

/// execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: Text, args: List, environment: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { search(file, args, environment) }
}

/// execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: Text, args: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { search(file, args, environ()) }
}

/// execveat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: Text,
    args: List,
    environment: List,
    flags: c_int,
) -> c_int {
    let mut buffer = Environment::EMPTY;
    // SAFETY: the caller's.
    let environment = unsafe { completed(environment, &mut buffer) };
    let args = [
        directory as usize,
        path as usize,
        args as usize,
        environment as usize,
        flags as usize,
        0,
    ];
    // SAFETY: as the caller made it; the environment's entries live across the call.
    let result = unsafe { kernel::pass_on(Sysno::execveat, args) };
    syscall_ret(result.map(|_| 0))
}

/// fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, args: List, environment: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { execveat(fd, c"".as_ptr(), args, environment, AT_EMPTY_PATH) }
}

/// Defines posix_spawn(3) or posix_spawnp(3). The environment may be on this function's stack: the child has executed its
/// program when the C library's function returns.
macro_rules! define_spawn {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut c_int,
            file: Text,
            actions: *const c_void,
            attributes: *const c_void,
            args: List,
            environment: List,
        ) -> c_int {
            let mut buffer = Environment::EMPTY;
            // SAFETY: the caller's.
            unsafe {
                let environment = completed(environment, &mut buffer);
                imports::$name(pid, file, actions, attributes, args, environment)
            }
        }
    };
}

define_spawn!(posix_spawn);
define_spawn!(posix_spawnp);

/// Defines a variadic function of exec(3): calls `$inner` with the first argument, and a pointer to the others. Arguments in
/// registers are pushed on the stack, in front of the arguments that are there already.
macro_rules! define_variadic {
    ($(#[$about:meta])* $name:ident, $inner:ident) => {
        $(#[$about])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(path: Text, first: Text) -> c_int {
            // The return address is moved below the arguments, and back.
            naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                sym $inner,
            )
        }

        $(#[$about])*
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(path: Text, first: Text) -> c_int {
            naked_asm!(
                "sub sp, sp, #64",
                "stp x30, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "add x1, sp, #8",
                "bl {}",
                "ldr x30, [sp]",
                "add sp, sp, #64",
                "ret",
                sym $inner,
            )
        }
    };
}

define_variadic!(
    /// execl(3).
    execl,
    execl_with_list
);
define_variadic!(
    /// execlp(3).
    execlp,
    execlp_with_list
);
define_variadic!(
    /// execle(3).
    execle,
    execle_with_list
);

unsafe extern "C" fn execl_with_list(path: Text, args: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { execute(path, args, environ()) }
}

unsafe extern "C" fn execlp_with_list(file: Text, args: List) -> c_int {
    // SAFETY: the caller's.
    unsafe { search(file, args, environ()) }
}

/// The environment follows the null pointer that ends the arguments.
unsafe extern "C" fn execle_with_list(path: Text, args: List) -> c_int {
    // SAFETY: the caller's list ends with a null pointer, and the environment is behind that.
    unsafe {
        let mut end = args;
        while !end.read().is_null() {
            end = end.add(1);
        }
        execute(path, args, end.add(1).read().cast())
    }
}

/// Executes a file by its path.
///
/// # Safety
///
/// As execve(2).
unsafe fn execute(path: Text, args: List, environment: List) -> c_int {
    let mut buffer = Environment::EMPTY;
    // SAFETY: the caller's.
    unsafe { imports::execve(path, args, completed(environment, &mut buffer)) }
}

/// Executes a file that is searched for in PATH.
///
/// # Safety
///
/// As execvpe(3).
unsafe fn search(file: Text, args: List, environment: List) -> c_int {
    let mut buffer = Environment::EMPTY;
    // SAFETY: the caller's.
    unsafe { imports::execvpe(file, args, completed(environment, &mut buffer)) }
}

/// Returns the environment, with the library's variables added in `buffer` if they are missing.
///
/// # Safety
///
/// As environ(7), or null.
unsafe fn completed(environment: List, buffer: &mut Environment) -> List {
    match state() {
        // SAFETY: the caller's.
        State::On(_) => buffer.complete(unsafe { entries(environment) }),
        State::Off | State::Broken => None,
    }
    .unwrap_or(environment)
}

const AT_EMPTY_PATH: c_int = 0x1000;
