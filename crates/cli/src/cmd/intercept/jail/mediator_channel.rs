//! The interceptor's end of the channel to the mediator.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use peername_intercept::host::LOOPBACK;
use peername_intercept::listener::jail::JailListener;
use peername_intercept::state::InterceptState;
use peername_jail::mediator::ports::{self, FromMediator};
use peername_sys::event::readiness::register_readable;
use peername_sys::netlink::{SocketLookup, TcpLookup};

/// Starts a task that closes the listeners of a port when the mediator asks for it, and records connections that the mediator
/// reports as refused. A refused connection to loopback is recorded only if `host_sockets` finds a listener on this host, which
/// the program may have meant and can't reach. `None` if the kernel has no such lookup.
pub(super) fn serve_mediator(
    mediator: OwnedFd,
    listeners: Vec<(u16, OwnedFd)>,
    jail: Arc<JailListener>,
    state: Arc<InterceptState>,
    host_sockets: Option<Arc<SocketLookup>>,
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
                    if !addr.ip().to_canonical().is_loopback()
                        || has_listener(host_sockets.as_deref(), addr)
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

/// Whether this host may have a listener at this port of a loopback address: `true` also where the lookup fails.
pub(super) fn may_have_local_server(host_sockets: Option<&SocketLookup>, port: u16) -> bool {
    let Some(sockets) = host_sockets else {
        return true;
    };
    LOOPBACK.into_iter().any(|ip| {
        let found = sockets.tcp(SocketAddr::new(ip, port), SocketAddr::new(ip, 0));
        !matches!(found, Ok(TcpLookup::Missing))
    })
}

/// Whether this host has a listener at this address. `false` if the lookup fails: the program may have meant a server of its
/// own.
fn has_listener(host_sockets: Option<&SocketLookup>, addr: SocketAddr) -> bool {
    let client = SocketAddr::new(addr.ip(), 0);
    host_sockets.is_some_and(|sockets| matches!(sockets.tcp(addr, client), Ok(TcpLookup::Listener)))
}
