//! The interceptor's end of the channel to the mediator.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use peername_intercept::listener::jail::JailListener;
use peername_intercept::state::InterceptState;
use peername_jail::mediator::ports::{self, FromMediator};
use peername_sys::event::readiness::register_readable;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::denial_report::write_unknown_denials;

/// Starts a task that closes the listeners of a port when the mediator asks for it, and records connections that the mediator
/// reports as refused. The task ends once the mediator has exited, and fails if it can receive no more. It returns the number of
/// connections that may have been reset with a listener, before the interceptor accepted them.
pub(super) fn serve_mediator(
    mediator: OwnedFd,
    listeners: Arc<[(u16, OwnedFd)]>,
    jail: Arc<JailListener>,
    state: Arc<InterceptState>,
) -> anyhow::Result<JoinHandle<io::Result<usize>>> {
    let mediator = UnixStream::from(mediator);
    mediator.set_nonblocking(true)?;
    let mediator = register_readable(mediator.into())?;
    Ok(tokio::spawn(async move {
        let mut unserved = 0;
        loop {
            let mut ready = mediator.readable().await?;
            let received = ready.try_io(|mediator| {
                ports::receive(mediator, &listeners).map_err(|error| error.source)
            });
            // An error of `try_io` means that no message is there.
            let Ok(message) = received else {
                continue;
            };
            match message? {
                FromMediator::Refused(addr) => jail.record_refused(&state, addr),
                FromMediator::Bound(addr) => state.forget_refused(addr.port()),
                FromMediator::Closed(count) => unserved += count,
                FromMediator::Exited => return Ok(unserved),
            }
        }
    }))
}

/// Waits until the mediator, which exits with the program, has exited, so that everything that it has reported is counted.
/// Returns `false`, and says so on standard error, if not all denials are known: the task of [`serve_mediator`] has failed or has
/// not ended in time, or connections may have been reset.
pub(super) async fn wait_mediator_exit(task: JoinHandle<io::Result<usize>>) -> bool {
    let cause = match timeout(EXIT_LIMIT, task).await {
        Ok(Ok(Ok(0))) => return true,
        Ok(Ok(Ok(unserved))) => {
            format!(
                "{unserved} may have been reset in the backlog of a port that the program has bound"
            )
        }
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(panic)) => panic.to_string(),
        Err(_) => format!("the mediator has not exited in {EXIT_LIMIT:?}"),
    };
    write_unknown_denials(&cause);
    false
}

/// Limit of the wait for the mediator: a file system of the program, mounted with `--allow-mounts`, can suspend it.
const EXIT_LIMIT: Duration = Duration::from_secs(5);
