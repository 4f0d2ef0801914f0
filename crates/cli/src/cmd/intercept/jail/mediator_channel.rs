//! The interceptor's end of the channel to the mediator.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use peername_intercept::listener::jail::JailListener;
use peername_intercept::state::InterceptState;
use peername_jail::mediator::ports::{self, FromMediator};
use peername_sys::event::readiness::register_readable;

/// Closes the listeners of a port when the mediator asks for it, and records the connections that it reports as refused, in a
/// task of its own.
///
/// # Errors
///
/// Those of epoll_ctl(2): none in normal operation.
pub(super) fn serve_mediator(
    mediator: OwnedFd,
    listeners: Vec<(u16, OwnedFd)>,
    jail: Arc<JailListener>,
    state: Arc<InterceptState>,
) -> anyhow::Result<()> {
    let mediator = UnixStream::from(mediator);
    mediator.set_nonblocking(true)?;
    let mediator = register_readable(mediator.into())?;
    tokio::spawn(async move {
        // It ends when the mediator exits.
        while let Ok(mut ready) = mediator.readable().await {
            let received = ready.try_io(|mediator| {
                ports::receive(mediator, &listeners).map_err(|error| error.source)
            });
            match received {
                Ok(Ok(FromMediator::Refused(addr))) => jail.record_refused(&state, addr),
                Ok(Ok(FromMediator::Closed)) | Err(_) => {}
                Ok(Ok(FromMediator::Exited) | Err(_)) => break,
            }
        }
    });
    Ok(())
}
