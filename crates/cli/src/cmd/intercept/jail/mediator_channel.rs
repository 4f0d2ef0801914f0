//! The interceptor's end of the channel to the mediator.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use peername_intercept::listener::jail::JailListener;
use peername_intercept::state::InterceptState;
use peername_jail::mediator::ports::{self, FromMediator};
use peername_sys::event::readiness::register_readable;
use peername_sys::netlink::{SocketLookup, TcpSocket};

/// Closes the listeners of a port when the mediator asks for it, and records the connections that it reports as refused, in a
/// task of its own. `host`: a lookup in this host's network, in which one to loopback may have been meant for a server that the
/// program can't reach; `None` where the kernel has none.
pub(super) fn serve_mediator(
    mediator: OwnedFd,
    listeners: Vec<(u16, OwnedFd)>,
    jail: Arc<JailListener>,
    state: Arc<InterceptState>,
    host: Option<SocketLookup>,
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
                Ok(Ok(FromMediator::Refused(addr))) => {
                    if !addr.ip().to_canonical().is_loopback() || has_listener(host.as_ref(), addr)
                    {
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

/// Whether this host has a listener at this address. What a lookup can't tell is not reported: the program's own servers may be
/// meant.
fn has_listener(host: Option<&SocketLookup>, addr: SocketAddr) -> bool {
    let client = SocketAddr::new(addr.ip(), 0);
    host.is_some_and(|host| matches!(host.tcp(addr, client), Ok(TcpSocket::Listener)))
}
