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

/// Whether replies to connections with this mark get the mark for local delivery, and that mark is routed.
pub(super) async fn is_delivered(netlink: &Netlink, mark: NonZeroU32, to: IpAddr) -> Result<bool> {
    Ok(is_reply_marked(mark).await? && netlink.is_mark_delivered_locally(to, LOCAL_FWMARK).await?)
}

async fn is_reply_marked(mark: NonZeroU32) -> Result<bool> {
    let (client, server) = connected_pair().await.call("connect(2)")?;
    set_mark(&client, mark.get())?;
    accept_only_marked(&client, LOCAL_FWMARK)?;
    let exchange = async {
        client.send(&[0]).await?;
        server.recv(&mut [0]).await?;
        server.send(&[0]).await?;
        client.recv(&mut [0]).await.map(drop)
    };
    match timeout(EXCHANGE_TIMEOUT, exchange).await {
        Ok(exchanged) => exchanged.call("sendto(2)").map(|()| true),
        Err(_) => Ok(false),
    }
}

async fn connected_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    client.connect(server.local_addr()?).await?;
    server.connect(client.local_addr()?).await?;
    Ok((client, server))
}

/// Timeout of a round trip over loopback, which takes well under a millisecond; the rest is for a busy host.
const EXCHANGE_TIMEOUT: Duration = Duration::from_millis(200);
