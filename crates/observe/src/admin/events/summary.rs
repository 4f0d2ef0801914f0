//! A summary of the open connections or sessions: totals, and the first few by each order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::super::listing::Order;
use crate::connections::{ConnectionSnapshot, ConnectionState, RelayMethod, SnapshotStream};

/// The open connections, or the open sessions, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of connections or sessions that were counted.
    pub counted: u64,
    /// Whether there are more than were counted (`MAX_COUNTED`).
    pub is_partial: bool,
    /// Bytes from clients that backends accepted.
    pub bytes_in: u64,
    /// Bytes from backends that clients accepted.
    pub bytes_out: u64,
    /// The number in each state.
    pub states: BTreeMap<ConnectionState, u64>,
    /// The number whose bytes each method moves.
    pub relays: BTreeMap<RelayMethod, u64>,
    /// The clients that have the most open.
    pub clients: TopPeers,
    /// The balancers that have the most open.
    pub balancers: TopPeers,
    /// The connections or sessions with the most bytes.
    pub largest: Vec<ConnectionSnapshot>,
    /// The oldest connections or sessions.
    pub oldest: Vec<ConnectionSnapshot>,
}

/// The peers that have the most open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopPeers {
    /// Most connections first.
    pub by_connections: Vec<Peer>,
    /// Most bytes first.
    pub by_bytes: Vec<Peer>,
}

/// The open connections or sessions of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its connections or sessions.
    pub connections: u64,
    /// Their bytes, in both directions.
    pub bytes: u64,
}

impl Summary {
    /// Counts what is open, batch by batch, until at least [`MAX_COUNTED`] are counted.
    pub(in crate::admin) async fn collect(mut snapshots: SnapshotStream) -> Self {
        let mut summary = Self::default();
        let mut clients = Peers::default();
        let mut balancers = Peers::default();
        while let Some(batch) = snapshots.next().await {
            if summary.counted >= MAX_COUNTED {
                summary.is_partial = true;
                break;
            }
            for snapshot in &batch {
                summary.add(snapshot);
                let bytes = snapshot.bytes();
                balancers.add(snapshot.peer.ip(), bytes);
                if let Some(client) = snapshot.client {
                    clients.add(client.ip(), bytes);
                }
            }
            summary.largest.extend(batch.iter().cloned());
            summary.oldest.extend(batch);
            Order::Bytes.keep_first(&mut summary.largest, MAX_LISTED);
            Order::Age.keep_first(&mut summary.oldest, MAX_LISTED);
        }
        summary.clients = clients.top();
        summary.balancers = balancers.top();
        summary
    }

    fn add(&mut self, snapshot: &ConnectionSnapshot) {
        self.counted += 1;
        self.bytes_in = self
            .bytes_in
            .saturating_add(snapshot.bytes_in.unwrap_or_default());
        self.bytes_out = self
            .bytes_out
            .saturating_add(snapshot.bytes_out.unwrap_or_default());
        *self.states.entry(snapshot.state).or_default() += 1;
        if let Some(relay) = snapshot.relay {
            *self.relays.entry(relay).or_default() += 1;
        }
    }
}

/// Connections and bytes by address.
#[derive(Default)]
struct Peers(HashMap<IpAddr, (u64, u64)>);

impl Peers {
    fn add(&mut self, address: IpAddr, bytes: u64) {
        let (connections, sum) = self.0.entry(address.to_canonical()).or_default();
        *connections += 1;
        *sum = sum.saturating_add(bytes);
    }

    fn top(self) -> TopPeers {
        let mut peers: Vec<_> = self
            .0
            .into_iter()
            .map(|(address, (connections, bytes))| Peer {
                address,
                connections,
                bytes,
            })
            .collect();
        // The address decides between equals, so that rows do not change places each second.
        let mut first_by = |order: fn(&Peer) -> (u64, u64)| {
            peers.sort_unstable_by_key(|peer| (Reverse(order(peer)), peer.address));
            peers.iter().take(TOP_PEERS).copied().collect()
        };
        TopPeers {
            by_connections: first_by(|peer| (peer.connections, peer.bytes)),
            by_bytes: first_by(|peer| (peer.bytes, peer.connections)),
        }
    }
}

/// Counting this many takes the workers a few milliseconds of each second.
const MAX_COUNTED: u64 = 20_000;
const TOP_PEERS: usize = 10;
const MAX_LISTED: usize = 25;
