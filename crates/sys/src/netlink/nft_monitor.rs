//! Notifications of nftables about removed tables, chains and rules (`nft monitor destroy`).

use std::io;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use tokio::sync::mpsc;

use super::monitor::{self, Monitor};
use super::raw::{Message, split_first};
use crate::{NameCall, Result};

/// Subscribes to removals in tables whose name begins with a prefix. Needs CAP_NET_ADMIN.
pub type NftMonitor = Monitor<NftRemoval>;

/// A transaction removed a table, or chains or rules of one, or notifications were lost (ENOBUFS).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NftRemoval {
    /// The process that did it; `None` after a loss of notifications.
    pub process: Option<NftProcess>,
}

/// A process, as nftables names the author of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftProcess {
    /// Its id.
    pub pid: u32,
    /// Its name: up to 15 bytes that the process chose.
    pub name: String,
}

impl NftMonitor {
    /// Subscribes to removals from now on. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN, EPROTONOSUPPORT where the kernel has no nfnetlink.
    pub fn subscribe(name_prefix: &'static str) -> Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER).call("socket(NETLINK_NETFILTER)")?;
        let address = SocketAddr::new(0, NFTABLES_GROUP);
        socket
            .socket_mut()
            .bind(&address)
            .call("bind(NETLINK_NETFILTER, NFNLGRP_NFTABLES)")?;
        Ok(Self::spawn(|sender| forward(socket, sender, name_prefix)))
    }
}

async fn forward(socket: TokioSocket, sender: mpsc::Sender<NftRemoval>, prefix: &'static str) {
    let mut has_removal = false;
    loop {
        let removal = match socket.recv_from_full().await {
            Ok((datagram, _)) => read_datagram(&datagram, prefix, &mut has_removal),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                // The end of the transaction may be lost, too.
                has_removal = false;
                Some(NftRemoval::default())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(_) => return,
        };
        if !monitor::queue(&sender, removal) {
            return;
        }
    }
}

/// Returns the removal of a transaction that ends in this datagram. A transaction may be spread over several datagrams, and its
/// last message names the process; so `has_removal` keeps whether the messages so far have removed anything.
fn read_datagram(datagram: &[u8], prefix: &str, has_removal: &mut bool) -> Option<NftRemoval> {
    let mut removal = None;
    let mut rest = datagram;
    while let Some((message, after)) = split_first(rest) {
        *has_removal |= is_removal(&message, prefix);
        if message.kind == NEW_GENERATION && std::mem::take(has_removal) {
            removal = Some(NftRemoval {
                process: author(message.body),
            });
        }
        rest = after;
    }
    removal
}

/// Whether a table whose name has the prefix is removed, or a chain or a rule in it.
fn is_removal(message: &Message<'_>, prefix: &str) -> bool {
    [DELETE_TABLE, DELETE_CHAIN, DELETE_RULE].contains(&message.kind)
        && attribute(message.body, TABLE_NAME)
            .is_some_and(|name| name.starts_with(prefix.as_bytes()))
}

/// The process in the message that ends a transaction.
fn author(generation: &[u8]) -> Option<NftProcess> {
    let pid = attribute(generation, GENERATION_PID)?;
    let name = attribute(generation, GENERATION_NAME)?;
    let name = name.split(|&byte| byte == 0).next()?;
    Some(NftProcess {
        pid: u32::from_be_bytes(pid.try_into().ok()?),
        name: String::from_utf8_lossy(name).into_owned(),
    })
}

/// The value of the first attribute of this kind, after `struct nfgenmsg`.
fn attribute(body: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = body.get(NFGENMSG_LEN..)?;
    loop {
        let (head, _) = rest.split_first_chunk::<4>()?;
        let [l0, l1, k0, k1] = *head;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        if u16::from_ne_bytes([k0, k1]) & ATTRIBUTE_KIND == wanted {
            return rest.get(4..len);
        }
        rest = rest.get(len.max(4).next_multiple_of(4)..)?;
    }
}

/// Of `struct nfgenmsg` (linux/netfilter/nfnetlink.h).
const NFGENMSG_LEN: usize = 4;
/// NFNLGRP_NFTABLES is 7, and a mask has a bit for each group.
const NFTABLES_GROUP: u32 = 1 << (7 - 1);
/// NFNL_SUBSYS_NFTABLES, the upper byte of a message's type.
const NFTABLES: u16 = 10 << 8;
const DELETE_TABLE: u16 = NFTABLES | 2;
const DELETE_CHAIN: u16 = NFTABLES | 5;
const DELETE_RULE: u16 = NFTABLES | 8;
const NEW_GENERATION: u16 = NFTABLES | 15;
/// NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and NFTA_RULE_TABLE: the name of the table, for all three kinds of objects.
const TABLE_NAME: u16 = 1;
/// NFTA_GEN_PROC_PID and NFTA_GEN_PROC_NAME.
const GENERATION_PID: u16 = 2;
const GENERATION_NAME: u16 = 3;
/// NLA_TYPE_MASK.
const ATTRIBUTE_KIND: u16 = 0x3fff;
