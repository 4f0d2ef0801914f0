//! The last steps before the program is executed: what was set up is put out of its reach.

use peername_sys::Errno;
use peername_sys::process::confine::scopes;
use peername_sys::process::fork::close_on_exec_above_stderr;
use peername_sys::process::namespace::{Unshared, unshare_with_new_user_namespace};
use peername_sys::seccomp::{
    Mediation, confine_calls_with_mediator, confine_calls_without_mediator,
};

use crate::JailError;
use crate::mediator::MediatorChannel;

/// Moves this process, which must have one thread only, into the user namespace in which the program runs, and restricts it for
/// good. Execute the program next. `may_mount`: whether the program may change mounts in mount namespaces of its own.
///
/// - The mounts that cover files are locked, and the network namespace belongs to another user namespace than the program's: no
///   capability that the program has or gains applies to either.
/// - The program's System V IPC and POSIX message queues are those of a namespace of its own.
/// - It sends no signals to processes outside (Linux 6.12).
/// - System calls that would reach past its namespaces are denied, or made by its mediator ([`confine_calls_with_mediator`]).
/// - It inherits the descriptors 0, 1 and 2 only: a socket that was opened outside would stay connected to the outside.
///
/// Returns whether there is a mediator. There is none if an outer jail or a container manager has one already, because there
/// can be only one: Unix sockets and calls about other processes are refused then.
///
/// no_new_privs is not set. An ordinary user's user namespace has no other user, so set-user-ID programs gain nothing there;
/// root's has all users, and set-user-ID programs still work.
pub fn confine(mediator: MediatorChannel, may_mount: bool) -> Result<Mediation, JailError> {
    unshare_with_new_user_namespace(Unshared::MountsAndIpc).map_err(JailError::Confine)?;
    scopes::isolate().map_err(JailError::Confine)?;
    let mediation = confine_to_mediator(mediator, may_mount)?;
    close_on_exec_above_stderr().map_err(JailError::Confine)?;
    Ok(mediation)
}

fn confine_to_mediator(mediator: MediatorChannel, may_mount: bool) -> Result<Mediation, JailError> {
    match confine_calls_with_mediator(may_mount) {
        Ok(listener) => mediator.start(&listener).map(|()| Mediation::Mediated),
        // An inherited filter has a listener already, and the kernel allows one only: nothing can be mediated.
        Err(error) if error.errno() == Some(Errno::BUSY.raw_os_error()) => {
            confine_calls_without_mediator(may_mount).map_err(JailError::Confine)?;
            Ok(Mediation::Unmediated)
        }
        Err(error) => Err(JailError::Confine(error)),
    }
}
