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
    /// How many were counted here.
    pub counted: u64,
    /// Whether there are more than were counted (`MAX_COUNTED`).
    pub is_partial: bool,
    /// Bytes from clients that backends accepted.
    pub bytes_in: u64,
    /// Bytes from backends that clients accepted.
    pub bytes_out: u64,
    /// How many are in each state.
    pub states: BTreeMap<ConnectionState, u64>,
    /// How many are moved by each method.
    pub relays: BTreeMap<RelayMethod, u64>,
    /// The clients with the most.
    pub clients: TopPeers,
    /// The balancers with the most.
    pub balancers: TopPeers,
    /// Those with the most bytes.
    pub largest: Vec<ConnectionSnapshot>,
    /// Those that are open for longest.
    pub oldest: Vec<ConnectionSnapshot>,
}

/// The first few peers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopPeers {
    /// Most connections first.
    pub by_connections: Vec<Peer>,
    /// Most bytes first.
    pub by_bytes: Vec<Peer>,
}

/// What a peer has open.
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
    /// Counts what is open, in batches, up to [`MAX_COUNTED`].
    pub(in crate::admin) async fn collect(mut snapshots: SnapshotStream) -> Self {
        let mut summary = Self::default();
        let mut clients = Peers::default();
        let mut balancers = Peers::default();
        while let Some(batch) = snapshots.next().await {
            if summary.counted >= MAX_COUNTED {
                summary.is_partial = true;
                break;
            }
            for one in &batch {
                summary.add(one);
                let bytes = one.bytes();
                balancers.add(one.balancer.ip(), bytes);
                if let Some(client) = one.client {
                    clients.add(client.ip(), bytes);
                }
            }
            summary.largest.extend(batch.iter().cloned());
            summary.oldest.extend(batch);
            Order::Bytes.sort(&mut summary.largest, LISTED);
            Order::Age.sort(&mut summary.oldest, LISTED);
        }
        summary.clients = clients.top();
        summary.balancers = balancers.top();
        summary
    }

    fn add(&mut self, one: &ConnectionSnapshot) {
        self.counted += 1;
        self.bytes_in = self
            .bytes_in
            .saturating_add(one.bytes_in.unwrap_or_default());
        self.bytes_out = self
            .bytes_out
            .saturating_add(one.bytes_out.unwrap_or_default());
        *self.states.entry(one.state).or_default() += 1;
        if let Some(relay) = one.relay {
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
        let all = self.0.into_iter();
        let mut peers: Vec<_> = all
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

/// Counting as many takes the workers a few milliseconds in each second.
const MAX_COUNTED: u64 = 20_000;
const TOP_PEERS: usize = 10;
const LISTED: usize = 25;
