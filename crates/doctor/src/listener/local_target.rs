//! Checks that concern servers of this host only.

use std::net::SocketAddr;

use peername_proxy::routes::{BackendLocation, locate_backend};
use peername_sys::netlink::Netlink;

use crate::finding::Finding;

/// Runs `examine` if `target` is an address of this host.
pub(crate) async fn examine_if_local(
    check: &'static str,
    target: SocketAddr,
    examine: impl FnOnce() -> Finding,
) -> Finding {
    let location = async { locate_backend(&Netlink::open()?, target).await };
    match location.await {
        Ok(BackendLocation::OtherHost) => {
            Finding::ok(check, format!("{target} is on another host"))
        }
        Ok(_) => examine(),
        Err(error) => Finding::broken(check, error.to_string()),
    }
}
