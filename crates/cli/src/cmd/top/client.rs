//! The requests to the admin endpoint that only `top` makes.

use anyhow::{Context, ensure};
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use peername_observe::admin::AdminAddr;
use peername_observe::admin::events::StatusEvent;

use crate::admin_client::AdminClient;

impl AdminClient {
    /// Whether the endpoint accepts changes: over a Unix socket only.
    pub(super) fn may_change(&self) -> bool {
        matches!(self.0, AdminAddr::Unix(_))
    }

    /// Opens the stream of events.
    pub(super) async fn events(&self) -> anyhow::Result<EventStream> {
        let body = self.request(Method::GET, "/events").await?.into_body();
        Ok(EventStream {
            body,
            received: Vec::new(),
        })
    }

    /// Closes a connection.
    pub(super) async fn close(&self, id: u64) -> anyhow::Result<()> {
        let path = format!("/connections/{id}");
        self.request(Method::DELETE, &path).await?;
        Ok(())
    }
}

/// An open stream of events.
#[derive(Debug)]
pub(super) struct EventStream {
    body: Incoming,
    /// What was received of the next events.
    received: Vec<u8>,
}

impl EventStream {
    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<StatusEvent>> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.received.drain(..end + 2).collect();
                if let Some(data) = block.strip_prefix(b"data: ") {
                    let event = serde_json::from_slice(data);
                    return Ok(Some(event.context(OTHER_VERSION)?));
                }
                continue;
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            if let Ok(data) = frame.context("GET /events: read(2)")?.into_data() {
                self.received.extend_from_slice(&data);
            }
            ensure!(self.received.len() <= MAX_EVENT, OTHER_VERSION);
        }
    }
}

const OTHER_VERSION: &str =
    "GET /events: no event of this version of peername; use the version that serves the endpoint";
/// Bytes that may be received of an event: far more than any has.
const MAX_EVENT: usize = 4 << 20;
