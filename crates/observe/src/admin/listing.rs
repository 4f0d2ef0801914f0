//! Listings of connections: the query's filters, order and limit, and the JSON lines of the answer.

use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use crate::connections::{ConnectionSnapshot, ConnectionState, SNAPSHOT_BATCH, SnapshotStream};

/// The query of a listing: `?client=CIDR&listener=ADDR:PORT&state=STATE&min_age=DURATION&sort=bytes|age&limit=N`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    client: Option<IpNet>,
    listener: Option<SocketAddr>,
    state: Option<ConnectionState>,
    min_age: Duration,
    sort: Option<Order>,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Most bytes first.
    Bytes,
    /// Oldest first.
    Age,
}

impl ListQuery {
    /// Parses the query of a URL; an empty one lists everything.
    ///
    /// # Errors
    ///
    /// The key is unknown or its value invalid: a line of text for the caller.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            let is_valid = parsed.set(key, &value);
            is_valid.ok_or_else(|| INVALID_QUERY.to_owned())?;
        }
        Ok(parsed)
    }

    /// The listing as JSON lines, in pieces. Unsorted, it is never in memory as a whole.
    pub fn render(self, snapshots: SnapshotStream) -> BoxStream<'static, Bytes> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let Some(order) = self.sort else {
            let mut left = limit;
            let lines = snapshots.map(move |mut batch| {
                batch.retain(|one| self.matches(one));
                batch.truncate(left);
                left -= batch.len();
                (lines(&batch), left)
            });
            // The batch that reaches the limit is the last one of the answer.
            let mut is_over = false;
            return lines
                .take_while(move |&(_, left)| ready(!std::mem::replace(&mut is_over, left == 0)))
                .map(|(lines, _)| lines)
                .filter(|lines| ready(!lines.is_empty()))
                .boxed();
        };
        let sorted = async move {
            let mut snapshots = snapshots;
            let mut first = Vec::new();
            while let Some(batch) = snapshots.next().await {
                first.extend(batch.into_iter().filter(|one| self.matches(one)));
                if first.len() > limit.saturating_mul(2).max(SNAPSHOT_BATCH) {
                    order.sort(&mut first, limit);
                }
            }
            order.sort(&mut first, limit);
            let batches: Vec<_> = first.chunks(SNAPSHOT_BATCH).map(lines).collect();
            stream::iter(batches)
        };
        stream::once(sorted).flatten().boxed()
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "client" => self.client = Some(network(value)?),
            "listener" => self.listener = Some(value.parse().ok()?),
            "state" => self.state = Some(state(value)?),
            "min_age" => self.min_age = age(value)?,
            "sort" => {
                self.sort = Some(match value {
                    "bytes" => Order::Bytes,
                    "age" => Order::Age,
                    _ => return None,
                });
            }
            "limit" => self.limit = Some(value.parse().ok()?),
            _ => return None,
        }
        Some(())
    }

    fn matches(&self, one: &ConnectionSnapshot) -> bool {
        let is_client = |network: &IpNet| {
            let client = one.client.map(|client| client.ip());
            client.is_some_and(|client| network.contains(&client))
        };
        self.client.as_ref().is_none_or(is_client)
            && self
                .listener
                .is_none_or(|listener| listener == one.listener)
            && self.state.is_none_or(|state| state == one.state)
            && one.age_s >= self.min_age.as_secs_f64()
    }
}

impl Order {
    /// Sorts, and keeps the first `limit`.
    pub(super) fn sort(self, snapshots: &mut Vec<ConnectionSnapshot>, limit: usize) {
        match self {
            Self::Bytes => snapshots
                .sort_by_key(|one| std::cmp::Reverse(one.bytes_in.saturating_add(one.bytes_out))),
            Self::Age => snapshots.sort_by(|a, b| b.age_s.total_cmp(&a.age_s)),
        }
        snapshots.truncate(limit);
    }
}

fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

fn state(text: &str) -> Option<ConnectionState> {
    ConnectionState::deserialize(StrDeserializer::<ValueError>::new(text)).ok()
}

/// `90` or `1m30s`.
fn age(text: &str) -> Option<Duration> {
    let seconds = || text.parse().ok().map(Duration::from_secs);
    seconds().or_else(|| humantime::parse_duration(text).ok())
}

fn lines(snapshots: &[ConnectionSnapshot]) -> Bytes {
    let mut out = Vec::new();
    for one in snapshots {
        // It can't fail: the fields are numbers, addresses and names.
        let _ = serde_json::to_writer(&mut out, one);
        out.push(b'\n');
    }
    out.into()
}

const INVALID_QUERY: &str = "query: client=CIDR, listener=ADDR:PORT, \
    state=header|connecting|open|half_closed|unanswered|answered, min_age=DURATION, sort=bytes|age, limit=N";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Protocol;

    fn snapshot(id: u64, client: &str, bytes: u64) -> ConnectionSnapshot {
        ConnectionSnapshot {
            id,
            listener: "192.0.2.1:443".parse().unwrap(),
            protocol: Protocol::Tcp,
            balancer: "192.0.2.9:1".parse().unwrap(),
            client: client.parse().ok(),
            target: None,
            state: ConnectionState::Open,
            age_s: id as f64,
            idle_s: 0.0,
            bytes_in: bytes,
            bytes_out: 0,
            relay: None,
        }
    }

    /// The ids that a query lists, of batches of two.
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
    fn unknown_keys_and_values_are_errors() {
        for query in [
            "sort=name",
            "limit=-1",
            "client=x",
            "what=1",
            "state=ended",
            "min_age=x",
        ] {
            assert!(ListQuery::parse(query).is_err(), "{query}");
        }
    }
}
