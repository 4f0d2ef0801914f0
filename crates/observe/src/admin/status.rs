//! The state of the process: its readiness, its metrics, `/status`, and the event that is published each second while a stream
//! of events is open.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prometheus_client::encoding::text;
use tokio::time::{sleep, timeout};

use super::events::{ACCEPT_PAUSED, StatusEvent, Summary};
use super::samples::{self, Samples};
use super::{AdminServer, Health};
use crate::connections::{ConnectionSource, seconds};

impl<H: Health> AdminServer<H> {
    /// Publishes an event each second while there are streams, for as long as the future is polled.
    pub(super) async fn publish_events(&self) {
        loop {
            self.feed.wait_subscribed().await;
            self.feed.publish(&self.status().await);
            sleep(INTERVAL).await;
        }
    }

    async fn status(&self) -> StatusEvent {
        let not_ready = self.not_ready().await;
        let metrics = self
            .encode_metrics(not_ready.is_none())
            .map_or_else(|_| Samples::new(), |text| samples::parse(&text));
        let history = self.resources.history.state();
        StatusEvent {
            command: self.resources.command.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: seconds(self.started.elapsed()),
            not_ready,
            is_draining: self.health.is_draining(),
            last_reload: history.last_reload,
            last_upgrade: history.last_upgrade,
            last_refusals: self.health.last_refusals(),
            advice: self.advice_on(&metrics),
            metrics,
            connections: summarize(self.resources.connections.as_deref()).await,
            sessions: summarize(self.resources.sessions.as_deref()).await,
        }
    }

    /// The body of `/status`: readiness, uptime and history. Unlike an event, it has the process id and the state of the lists,
    /// but no metrics, refusals, advice, connections or sessions.
    pub(super) async fn status_json(&self) -> String {
        let not_ready = self.not_ready().await;
        let history = self.resources.history.state();
        let status = serde_json::json!({
            "command": self.resources.command,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": seconds(self.started.elapsed()),
            "not_ready": not_ready,
            "is_draining": self.health.is_draining(),
            "last_reload": history.last_reload,
            "last_upgrade": history.last_upgrade,
            "stale_lists": history.stale_lists,
        });
        format!("{status:#}\n")
    }

    /// Returns why clients should not be sent here, or `None` if they should.
    async fn not_ready(&self) -> Option<String> {
        let liveness = timeout(ANSWER_TIMEOUT, self.check_liveness());
        if liveness.await.is_err() {
            return Some(H::HANG_REASON.to_owned());
        }
        match timeout(ANSWER_TIMEOUT, self.check_readiness()).await {
            Ok(readiness) => readiness.err(),
            Err(_) => Some("the check of readiness takes too long".to_owned()),
        }
    }

    /// The readiness of the command, unless `PUT /readyz` has set maintenance.
    pub(super) async fn check_readiness(&self) -> Result<(), String> {
        if self.resources.history.is_in_maintenance() {
            return Err("maintenance: set by PUT /readyz".to_owned());
        }
        self.health.check_readiness().await
    }

    /// The metrics as text, with the readiness of this moment.
    pub(super) async fn scrape(&self) -> Result<String, fmt::Error> {
        let readiness = timeout(ANSWER_TIMEOUT, self.check_readiness()).await;
        self.encode_metrics(matches!(readiness, Ok(Ok(()))))
    }

    fn encode_metrics(&self, is_ready: bool) -> Result<String, fmt::Error> {
        self.is_ready.store(is_ready, Relaxed);
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }

    fn advice_on(&self, metrics: &Samples) -> BTreeMap<String, String> {
        let mut advice = self.advice_on_reasons(metrics);
        let limit = self.resources.limit.as_ref();
        if limit.is_some_and(|limit| limit.is_reached()) {
            advice.insert(ACCEPT_PAUSED.to_owned(), RAISE_LIMIT.to_owned());
        }
        advice
    }

    fn advice_on_reasons(&self, metrics: &Samples) -> BTreeMap<String, String> {
        let Some(advise) = self.resources.advise else {
            return BTreeMap::new();
        };
        metrics
            .values()
            .flatten()
            .flat_map(|sample| {
                REASON_LABELS
                    .iter()
                    .filter_map(|&label| sample.labels.get(label))
            })
            .filter_map(|reason| Some((reason.clone(), advise(reason)?.to_owned())))
            .collect()
    }
}

async fn summarize(source: Option<&dyn ConnectionSource>) -> Option<Summary> {
    let summary = Summary::collect(source?.snapshots());
    timeout(ANSWER_TIMEOUT, summary).await.ok()
}

const INTERVAL: Duration = Duration::from_secs(1);
/// A worker that has not answered within this time hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const RAISE_LIMIT: &str = "As many connections are open as descriptors allow; others wait. Raise LimitNOFILE or `ulimit -n`.";
/// The labels whose values are reasons.
const REASON_LABELS: [&str; 3] = ["outcome", "reason", "code"];
