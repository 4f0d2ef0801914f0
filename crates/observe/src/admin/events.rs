//! `/events`: the state of the process each second, as server-sent events. The page and `peername top` show it.

mod summary;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

pub use summary::{Peer, Summary, TopPeers};

use super::history::Attempt;
use super::samples::Samples;

/// The state of a process at one moment: the data of one event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusEvent {
    /// The subcommand, such as `proxy`.
    pub command: String,
    /// The version of peername.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Why clients should not be sent here; `None` if they should.
    pub not_ready: Option<String>,
    /// Whether the process drains. This event is the last one of its stream.
    pub is_draining: bool,
    /// The last reload; `None` before the first one.
    pub last_reload: Option<Attempt>,
    /// The last upgrade: the one by which this process began, or a later one that was refused.
    pub last_upgrade: Option<Attempt>,
    /// The last refusal of each reason, where the command notes it. An older process has none.
    #[serde(default)]
    pub last_refusals: BTreeMap<String, LastRefusal>,
    /// The samples of `/metrics`.
    pub metrics: Samples,
    /// Advice by reason, for the reasons that occur in the metrics.
    pub advice: BTreeMap<String, String>,
    /// The open connections; `None` if this command does not list them, or a worker hangs.
    pub connections: Option<Summary>,
    /// The open UDP sessions, likewise.
    pub sessions: Option<Summary>,
}

/// The last refusal of one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastRefusal {
    /// In seconds since 1970.
    pub at: u64,
    /// Its client and peer, such as `from 192.0.2.10`.
    pub example: String,
}

/// The streams of `/events`. Each gets the latest event: one that reads slowly misses some, and is not waited for.
#[derive(Debug)]
pub(super) struct EventFeed {
    latest: watch::Sender<Option<Published>>,
    subscribed: Notify,
}

/// The permits for streams of one listener. Each listener has its own, so that the clients of one can't exhaust those of
/// another. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamPermits(Arc<Mutex<Vec<Weak<StreamPermit>>>>);

/// The permit of an open stream. A stream whose client has stopped reading does not count.
#[derive(Debug)]
struct StreamPermit {
    /// When the connection took the last event. If the client does not read, the connection takes events until its buffers are
    /// full.
    read_at: Mutex<Instant>,
}

impl StreamPermits {
    /// Returns `None` while there are too many streams.
    fn acquire(&self) -> Option<Arc<StreamPermit>> {
        let mut all = self.0.lock();
        all.retain(|permit| permit.strong_count() > 0);
        let reading = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|permit| permit.is_reading())
            .count();
        if reading >= MAX_STREAMS {
            return None;
        }
        let permit = Arc::new(StreamPermit {
            read_at: Mutex::new(Instant::now()),
        });
        all.push(Arc::downgrade(&permit));
        Some(permit)
    }
}

impl StreamPermit {
    fn note_read(&self) {
        *self.read_at.lock() = Instant::now();
    }

    fn is_reading(&self) -> bool {
        self.read_at.lock().elapsed() < STALL_TIMEOUT
    }
}

/// An event as it is sent.
#[derive(Clone, Debug)]
struct Published {
    bytes: Bytes,
    is_last: bool,
}

impl Default for EventFeed {
    fn default() -> Self {
        Self {
            latest: watch::Sender::new(None),
            subscribed: Notify::new(),
        }
    }
}

impl EventFeed {
    /// A stream of events; `None` if there are too many.
    pub(super) fn subscribe(&self, permits: &StreamPermits) -> Option<BoxStream<'static, Bytes>> {
        let permit = permits.acquire()?;
        let mut latest = self.latest.subscribe();
        // The event of this second, if there is one.
        latest.mark_changed();
        self.subscribed.notify_one();
        let events = stream::unfold(Some((latest, permit)), |open| async {
            let (mut latest, permit) = open?;
            permit.note_read();
            loop {
                latest.changed().await.ok()?;
                let published = latest.borrow_and_update().clone();
                if let Some(Published { bytes, is_last }) = published {
                    return Some((bytes, (!is_last).then_some((latest, permit))));
                }
            }
        });
        let retry = stream::once(ready(Bytes::from_static(RETRY_FIELD)));
        Some(retry.chain(events).boxed())
    }

    /// Waits until there is a stream.
    pub(super) async fn wait_subscribed(&self) {
        while self.latest.receiver_count() == 0 {
            self.latest.send_replace(None);
            self.subscribed.notified().await;
        }
    }

    /// Sends an event to all streams.
    pub(super) fn publish(&self, event: &StatusEvent) {
        let mut bytes = b"data: ".to_vec();
        // It can't fail: the keys of its maps are texts and names.
        let _ = serde_json::to_writer(&mut bytes, event);
        bytes.extend_from_slice(b"\n\n");
        self.latest.send_replace(Some(Published {
            bytes: bytes.into(),
            is_last: event.is_draining,
        }));
    }
}

/// Limit of streams of one listener. It is far below the limit of connections, so that the other paths stay reachable.
pub(super) const MAX_STREAMS: usize = 8;
/// Events come each second, so the connection of a client that reads has taken one within this time.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Tells a browser how long to wait before it connects again.
const RETRY_FIELD: &[u8] = b"retry: 2000\n\n";

/// The key of the advice while no connection is accepted.
pub const ACCEPT_PAUSED: &str = "accept_paused";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_of_clients_that_stopped_reading_do_not_count() {
        let (feed, permits) = (EventFeed::default(), StreamPermits::default());
        let mut open: Vec<_> = (0..MAX_STREAMS)
            .map(|_| feed.subscribe(&permits).expect("a permit"))
            .collect();
        assert!(feed.subscribe(&permits).is_none());
        for permit in &*permits.0.lock() {
            let permit = permit.upgrade().expect("an open stream");
            *permit.read_at.lock() -= STALL_TIMEOUT;
        }
        // The first one reads again.
        feed.latest.send_replace(Some(Published {
            bytes: Bytes::from_static(b"data: 1"),
            is_last: false,
        }));
        assert_eq!(open[0].next().await.as_deref(), Some(RETRY_FIELD));
        assert_eq!(open[0].next().await.as_deref(), Some(&b"data: 1"[..]));
        for _ in 1..MAX_STREAMS {
            let stream = feed.subscribe(&permits);
            open.push(stream.expect("the permit of a stalled stream"));
        }
        assert!(feed.subscribe(&permits).is_none());
    }
}
