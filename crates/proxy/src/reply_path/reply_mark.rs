//! Whether replies to marked connections are delivered here: the packet filter table and the rule of `routes add --mark`.
//!
//! Tables can't be listed without CAP_NET_ADMIN. So a datagram with the mark is sent over loopback, and its reply must arrive
//! with the mark that the table sets. Nothing is sent to a backend.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_sys::netlink::Netlink;
use peername_sys::socket::{accept_only_marked, set_mark};
use peername_sys::{NameCall, Result};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::routes::LOCAL_FWMARK;

/// Whether replies to connections with this mark are marked for local delivery, and routed by that.
pub(super) async fn is_delivered(netlink: &Netlink, mark: NonZeroU32, to: IpAddr) -> Result<bool> {
    Ok(is_reply_marked(mark).await? && netlink.is_mark_delivered_locally(to, LOCAL_FWMARK).await?)
}

async fn is_reply_marked(mark: NonZeroU32) -> Result<bool> {
    let (asking, answering) = connected_pair().await.call("connect(2)")?;
    set_mark(&asking, mark.get())?;
    accept_only_marked(&asking, LOCAL_FWMARK)?;
    let exchange = async {
        asking.send(&[0]).await?;
        answering.recv(&mut [0]).await?;
        answering.send(&[0]).await?;
        asking.recv(&mut [0]).await.map(drop)
    };
    match timeout(ROUND_TRIP, exchange).await {
        Ok(exchanged) => exchanged.call("sendto(2)").map(|()| true),
        Err(_) => Ok(false),
    }
}

async fn connected_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let (asking, answering) = (bind().await?, bind().await?);
    asking.connect(answering.local_addr()?).await?;
    answering.connect(asking.local_addr()?).await?;
    Ok((asking, answering))
}

async fn bind() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await
}

/// It takes well under a millisecond; the rest is for a busy host.
const ROUND_TRIP: Duration = Duration::from_millis(200);
