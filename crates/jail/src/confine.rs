//! The last steps before the program is executed: what was set up is put out of its reach.

use peername_sys::Result;
use peername_sys::process::confine::scopes;
use peername_sys::process::descriptors;
use peername_sys::process::namespace::{Unshared, unshare_with_new_user_namespace};
use peername_sys::seccomp::deny_escapes;

use crate::JailError;

/// Moves this process, which must have one thread only, into the user namespace in which the program runs, and restricts it
/// for good. Execute the program next.
///
/// - The mounts that cover files are locked, and the network namespace belongs to another user namespace than the program's:
///   no capability that it has or gains applies to either.
/// - It sends no signals to processes outside (Linux 6.12).
/// - It makes none of the system calls that would reach a network past its namespace ([`deny_escapes`]).
/// - It inherits the descriptors 0, 1 and 2 only: a socket that was opened outside would stay connected to the outside.
///
/// no_new_privs is not set. An ordinary user's user namespace has no other user, so set-user-ID programs gain nothing there;
/// root's has all users, and they go on to work.
///
/// # Errors
///
/// [`JailError::Confine`].
pub fn confine() -> std::result::Result<(), JailError> {
    let confined = || -> Result<()> {
        unshare_with_new_user_namespace(Unshared::Mounts)?;
        scopes::isolate()?;
        deny_escapes()?;
        descriptors::close_on_exec_above_stderr()
    };
    confined().map_err(JailError::Confine)
}
