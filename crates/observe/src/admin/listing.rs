//! Listings of connections: the query's filters, order and limit, and the JSON lines of the answer.

use std::future::ready;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use ipnet::IpNet;
use peername_proto::parse_truncated_network;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use crate::connections::{ConnectionSnapshot, ConnectionState, SNAPSHOT_BATCH, SnapshotStream};
use crate::escape::escape_into;

/// The query of a listing:
/// `?client=CIDR&balancer=CIDR&listener=ADDR:PORT&state=STATE&min_age=DURATION&min_idle=DURATION&sort=bytes|age|idle&limit=N`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    client: Option<IpNet>,
    balancer: Option<IpNet>,
    listener: Option<SocketAddr>,
    state: Option<ConnectionState>,
    min_age: Duration,
    min_idle: Duration,
    sort: Option<Order>,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Most bytes first.
    Bytes,
    /// Oldest first.
    Age,
    /// Longest idle first.
    Idle,
}

impl ListQuery {
    /// Parses the query of a URL; an empty one lists everything.
    ///
    /// # Errors
    ///
    /// A key is unknown or occurs twice, or its value is invalid: a line of text for the caller.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut seen = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            let Some((known, form)) = PARAMETERS.iter().find(|(known, _)| *known == key) else {
                let known: Vec<_> = PARAMETERS.iter().map(|(known, _)| *known).collect();
                return Err(format!(
                    "{} is no parameter; there are: {}",
                    printable(key),
                    known.join(", ")
                ));
            };
            if seen.contains(known) {
                return Err(format!("{known} is given twice"));
            }
            seen.push(known);
            parsed
                .set(known, &value)
                .ok_or_else(|| format!("{known}={}: use {known}={form}", printable(&value)))?;
        }
        Ok(parsed)
    }

    /// The listing as JSON lines, in pieces. Unsorted, it is never in memory as a whole.
    pub fn render(self, snapshots: SnapshotStream) -> BoxStream<'static, Bytes> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let Some(order) = self.sort else {
            return snapshots
                .scan(limit, move |left, mut batch| {
                    if *left == 0 {
                        return ready(None);
                    }
                    batch.retain(|snapshot| self.matches(snapshot));
                    batch.truncate(*left);
                    *left -= batch.len();
                    ready(Some(json_lines(&batch)))
                })
                .filter(|lines| ready(!lines.is_empty()))
                .boxed();
        };
        let sorted = async move {
            let mut snapshots = snapshots;
            let mut first = Vec::new();
            while let Some(batch) = snapshots.next().await {
                first.extend(batch.into_iter().filter(|snapshot| self.matches(snapshot)));
                if first.len() > limit.saturating_mul(2).max(SNAPSHOT_BATCH) {
                    order.keep_first(&mut first, limit);
                }
            }
            order.keep_first(&mut first, limit);
            let batches: Vec<_> = first.chunks(SNAPSHOT_BATCH).map(json_lines).collect();
            stream::iter(batches)
        };
        stream::once(sorted).flatten().boxed()
    }

    /// Sets a known parameter; `None` if its value is invalid.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "client" => self.client = Some(parse_truncated_network(value)?),
            "balancer" => self.balancer = Some(parse_truncated_network(value)?),
            "listener" => self.listener = Some(value.parse().ok()?),
            "state" => self.state = Some(parse_state(value)?),
            "min_age" => self.min_age = parse_age(value)?,
            "min_idle" => self.min_idle = parse_age(value)?,
            "sort" => {
                self.sort = Some(match value {
                    "bytes" => Order::Bytes,
                    "age" => Order::Age,
                    "idle" => Order::Idle,
                    _ => return None,
                });
            }
            "limit" => self.limit = Some(value.parse().ok()?),
            _ => return None,
        }
        Some(())
    }

    fn matches(&self, snapshot: &ConnectionSnapshot) -> bool {
        self.matches_addresses(snapshot)
            && self.state.is_none_or(|state| state == snapshot.state)
            && snapshot.age_s >= self.min_age.as_secs_f64()
            && snapshot.idle_s >= self.min_idle.as_secs_f64()
    }

    fn matches_addresses(&self, snapshot: &ConnectionSnapshot) -> bool {
        let contains =
            |network: IpNet, addr: SocketAddr| network.contains(&addr.ip().to_canonical());
        self.client.is_none_or(|network| {
            snapshot
                .client
                .is_some_and(|client| contains(network, client))
        }) && self
            .balancer
            .is_none_or(|network| contains(network, snapshot.peer))
            && self
                .listener
                .is_none_or(|listener| listener == snapshot.listener)
    }
}

impl Order {
    /// Sorts the snapshots in this order, and keeps the first `limit`.
    pub(super) fn keep_first(self, snapshots: &mut Vec<ConnectionSnapshot>, limit: usize) {
        match self {
            Self::Bytes => snapshots.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.bytes())),
            Self::Age => snapshots.sort_by(|a, b| b.age_s.total_cmp(&a.age_s)),
            Self::Idle => snapshots.sort_by(|a, b| b.idle_s.total_cmp(&a.idle_s)),
        }
        snapshots.truncate(limit);
    }
}

/// The caller's text, escaped so that an error can quote it on a terminal.
fn printable(text: &str) -> String {
    let mut escaped = String::new();
    escape_into(&mut escaped, text.as_bytes(), MAX_QUOTED, b"");
    escaped
}

fn parse_state(text: &str) -> Option<ConnectionState> {
    ConnectionState::deserialize(StrDeserializer::<ValueError>::new(text)).ok()
}

/// Parses `90` or `1m30s`.
fn parse_age(text: &str) -> Option<Duration> {
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text).ok(),
    }
}

fn json_lines(snapshots: &[ConnectionSnapshot]) -> Bytes {
    let mut out = Vec::new();
    for snapshot in snapshots {
        // It can't fail: the fields are numbers, addresses and names.
        let _ = serde_json::to_writer(&mut out, snapshot);
        out.push(b'\n');
    }
    out.into()
}

/// The parameters of a query, and the form of their values.
const PARAMETERS: [(&str, &str); 8] = [
    ("client", "CIDR"),
    ("balancer", "CIDR"),
    ("listener", "ADDR:PORT"),
    (
        "state",
        "header|connecting|open|half_closed|handshake|idle|in_flight|unanswered|answered",
    ),
    ("min_age", "DURATION"),
    ("min_idle", "DURATION"),
    ("sort", "bytes|age|idle"),
    ("limit", "N"),
];
/// Bytes of the caller's text that an error quotes.
const MAX_QUOTED: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Protocol;

    fn snapshot(id: u64, client: &str, bytes: u64) -> ConnectionSnapshot {
        ConnectionSnapshot {
            id,
            listener: "192.0.2.1:443".parse().unwrap(),
            protocol: Protocol::Tcp,
            peer: "192.0.2.9:1".parse().unwrap(),
            client: client.parse().ok(),
            target: None,
            host: None,
            state: ConnectionState::Open,
            age_s: id as f64,
            idle_s: 0.0,
            bytes_in: Some(bytes),
            bytes_out: None,
            relay: None,
        }
    }

    /// The ids of the connections that a query lists, of four in batches of two.
    async fn ids(query: &str) -> Vec<u64> {
        let all = [
            snapshot(1, "203.0.113.1:1", 5),
            snapshot(2, "198.51.100.1:1", 30),
            snapshot(3, "203.0.113.2:1", 10),
            snapshot(4, "none", 20),
        ];
        let batches: Vec<_> = all.chunks(2).map(<[_]>::to_vec).collect();
        let query = ListQuery::parse(query).expect("a valid query");
        let pieces = query.render(stream::iter(batches).boxed());
        let text = pieces.collect::<Vec<_>>().await.concat();
        let parse = |line| serde_json::from_slice::<ConnectionSnapshot>(line).expect("an object");
        let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| parse(line).id).collect()
    }

    #[tokio::test]
    async fn query_filters_sorts_and_limits() {
        for (query, wanted) in [
            ("", &[1, 2, 3, 4][..]),
            ("client=203.0.113.0%2F24", &[1, 3]),
            ("client=198.51.100.1", &[2]),
            ("client=::ffff:198.51.100.1", &[2]),
            ("client=::ffff:203.0.113.0/120", &[1, 3]),
            ("balancer=192.0.2.0/24&limit=1", &[1]),
            ("balancer=192.0.2.8", &[]),
            ("sort=bytes", &[2, 4, 3, 1]),
            ("sort=age&limit=2", &[4, 3]),
            ("limit=3", &[1, 2, 3]),
            ("limit=0", &[]),
            ("min_age=3s&sort=bytes", &[4, 3]),
            ("state=half_closed", &[]),
            ("listener=192.0.2.1:443&state=open&limit=1", &[1]),
        ] {
            assert_eq!(ids(query).await, wanted, "{query}");
        }
    }

    #[test]
    fn every_state_is_listed() {
        let error = ConnectionState::deserialize(StrDeserializer::<ValueError>::new("ended"));
        // "unknown variant `ended`, expected one of `header`, …"
        let error = error.unwrap_err().to_string();
        let states: Vec<_> = error.split('`').skip(3).step_by(2).collect();
        let form = states.join("|");
        assert!(PARAMETERS.contains(&("state", form.as_str())), "{error}");
    }

    #[test]
    fn error_names_the_parameter_and_what_is_wrong_with_it() {
        for (query, error) in [
            ("sort=name", "sort=name: use sort=bytes|age|idle"),
            ("limit=1&limit=-1", "limit is given twice"),
            ("client=x", "client=x: use client=CIDR"),
            (
                "what=1",
                "what is no parameter; there are: client, balancer, listener, state, min_age, min_idle, sort, limit",
            ),
            (
                "state=ended",
                "state=ended: use state=header|connecting|open|half_closed|handshake|idle|in_flight|unanswered|answered",
            ),
            ("min_age=x%0a", "min_age=x%0a: use min_age=DURATION"),
        ] {
            assert_eq!(ListQuery::parse(query), Err(error.to_owned()), "{query}");
        }
    }
}
