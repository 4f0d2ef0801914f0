//! The interceptor's end of the channel to the mediator.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use peername_intercept::listener::jail::JailListener;
use peername_intercept::state::InterceptState;
use peername_jail::host_servers::HostServers;
use peername_jail::mediator::ports::{self, FromMediator};
use peername_sys::event::readiness::register_readable;

/// Starts a task that closes the listeners of a port when the mediator asks for it, and records connections that the mediator
/// reports as refused. A refused connection to loopback is recorded only if this host has a listener there, which the program may
/// have meant and can't reach.
pub(super) fn serve_mediator(
    mediator: OwnedFd,
    listeners: Vec<(u16, OwnedFd)>,
    jail: Arc<JailListener>,
    state: Arc<InterceptState>,
    host_servers: HostServers,
) -> anyhow::Result<()> {
    let mediator = UnixStream::from(mediator);
    mediator.set_nonblocking(true)?;
    let mediator = register_readable(mediator.into())?;
    tokio::spawn(async move {
        while let Ok(mut ready) = mediator.readable().await {
            let received = ready.try_io(|mediator| {
                ports::receive(mediator, &listeners).map_err(|error| error.source)
            });
            match received {
                Ok(Ok(FromMediator::Refused(addr))) => {
                    if !addr.ip().to_canonical().is_loopback() || host_servers.has_listener(addr) {
                        jail.record_refused(&state, addr);
                    }
                }
                Ok(Ok(FromMediator::Bound(addr))) => state.forget_refused(addr.port()),
                Ok(Ok(FromMediator::Closed)) | Err(_) => {}
                Ok(Ok(FromMediator::Exited) | Err(_)) => break,
            }
        }
    });
    Ok(())
}
