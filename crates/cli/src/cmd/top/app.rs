//! The state of the screen: the latest events, the order, the selected row, and what a key does.

use std::cmp::Reverse;
use std::net::SocketAddr;

use peername_daemon::usage::error_text::with_causes;
use peername_observe::admin::events::StatusEvent;
use peername_observe::admin::samples::Sample;
use peername_observe::connections::{ConnectionSnapshot, Protocol};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Closes the connection with this id.
    Close(u64),
}

/// The order of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Bytes,
    Age,
}

/// What the screen shows beside the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialog {
    None,
    Help,
    /// The question whether to close the connection with this id, of this client.
    Close(u64, Option<SocketAddr>),
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) event: StatusEvent,
    /// The previous event, for rates.
    previous: Option<StatusEvent>,
    pub(super) order: Order,
    pub(super) dialog: Dialog,
    /// The result of the last key.
    pub(super) message: Option<String>,
    /// Why there are no events at the moment.
    pub(super) lost: Option<String>,
    /// Rows move while they are shown, so the selection is a connection, not a row.
    selected: Option<(Protocol, u64)>,
    may_close: bool,
}

impl App {
    pub(super) fn new(event: StatusEvent, may_close: bool) -> Self {
        Self {
            event,
            previous: None,
            order: Order::Bytes,
            dialog: Dialog::None,
            message: None,
            lost: None,
            selected: None,
            may_close,
        }
    }

    pub(super) fn update(&mut self, event: StatusEvent) {
        self.previous = Some(std::mem::replace(&mut self.event, event));
        self.lost = None;
    }

    /// Reports that there are no events, until there is one.
    pub(super) fn report_lost(&mut self, error: &anyhow::Error) {
        self.lost = Some(format!("{}; trying again", with_causes(error)));
    }

    pub(super) fn report(&mut self, message: String) {
        self.message = Some(message);
    }

    /// The connections and sessions in their order.
    pub(super) fn rows(&self) -> Vec<&ConnectionSnapshot> {
        rows(&self.event, self.order)
    }

    /// The row of the selected connection, while it is listed.
    pub(super) fn selected_row(&self) -> Option<usize> {
        let selected = self.selected?;
        self.rows().iter().position(|row| row_key(row) == selected)
    }

    /// The change of a value per second between the last two events.
    pub(super) fn rate(&self, value: impl Fn(&StatusEvent) -> f64) -> f64 {
        let Some(previous) = &self.previous else {
            return 0.0;
        };
        let seconds = self.event.uptime_s - previous.uptime_s;
        if seconds > 0.0 {
            ((value(&self.event) - value(previous)) / seconds).max(0.0)
        } else {
            0.0
        }
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt {
            return Action::Quit;
        }
        self.message = None;
        match std::mem::replace(&mut self.dialog, Dialog::None) {
            Dialog::Help => Action::None,
            Dialog::Close(id, _) => match key.code {
                KeyCode::Char('y') => Action::Close(id),
                _ => Action::None,
            },
            Dialog::None => self.press_in_list(key.code),
        }
    }

    fn press_in_list(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Bytes => Order::Age,
                    Order::Age => Order::Bytes,
                };
            }
            KeyCode::Char('?') => self.dialog = Dialog::Help,
            KeyCode::Char('k') => self.ask_to_close(),
            KeyCode::Up => self.select(|row| row.saturating_sub(1)),
            KeyCode::Down => self.select(|row| row + 1),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            _ => {}
        }
        Action::None
    }

    /// Selects the row that `next` returns for the selected one; without a selection, the first row.
    fn select(&mut self, next: impl Fn(usize) -> usize) {
        let rows = self.rows();
        let row = self.selected_row().map_or(0, next);
        let last = rows.len().saturating_sub(1);
        self.selected = rows.get(row.min(last)).map(|row| row_key(row));
    }

    fn ask_to_close(&mut self) {
        match (self.selected_row().and(self.selected), self.may_close) {
            (None, _) => self.report("select a connection first, with the arrows".to_owned()),
            (Some((Protocol::Udp, _)), _) => {
                self.report("a UDP session can't be closed from here".to_owned());
            }
            (Some(_), false) => self.report(
                "connections are closed over a Unix socket only (--admin unix:PATH)".to_owned(),
            ),
            (Some((Protocol::Tcp, id)), true) => {
                let row = self.selected_row();
                let client = row.and_then(|row| self.rows().get(row)?.client);
                self.dialog = Dialog::Close(id, client);
            }
        }
    }
}

/// The listed connections and sessions of an event, in this order.
pub(super) fn rows(event: &StatusEvent, order: Order) -> Vec<&ConnectionSnapshot> {
    let summaries = [&event.connections, &event.sessions].into_iter().flatten();
    match order {
        Order::Bytes => {
            let mut rows: Vec<_> = summaries.flat_map(|summary| &summary.largest).collect();
            rows.sort_by_key(|row| Reverse(row.bytes()));
            rows
        }
        Order::Age => {
            let mut rows: Vec<_> = summaries.flat_map(|summary| &summary.oldest).collect();
            rows.sort_by(|a, b| b.age_s.total_cmp(&a.age_s));
            rows
        }
    }
}

/// The samples of a metric; none if the event does not have it.
pub(super) fn samples<'a>(event: &'a StatusEvent, name: &str) -> &'a [Sample] {
    event.metrics.get(name).map_or(&[], Vec::as_slice)
}

/// The sum of a metric's samples; with a label, of the samples that have it with this value.
pub(super) fn total(event: &StatusEvent, name: &str, label: Option<(&str, &str)>) -> f64 {
    samples(event, name)
        .iter()
        .filter(|sample| {
            label.is_none_or(|(key, value)| {
                sample.labels.get(key).is_some_and(|found| found == value)
            })
        })
        .map(|sample| sample.value)
        .sum()
}

/// Bytes to upstream and to downstream since the start, of connections that have ended and of open ones.
pub(super) fn moved_bytes(event: &StatusEvent) -> (f64, f64) {
    let open = || [&event.connections, &event.sessions].into_iter().flatten();
    let ended = |direction| {
        total(
            event,
            "peername_bytes_total",
            Some(("direction", direction)),
        )
    };
    let bytes_in: f64 = open().map(|summary| summary.bytes_in as f64).sum();
    let bytes_out: f64 = open().map(|summary| summary.bytes_out as f64).sum();
    (
        ended("to_upstream") + bytes_in,
        ended("to_downstream") + bytes_out,
    )
}

/// Reasons of refusals, each with its count and advice, the most frequent first.
pub(crate) fn refusals(event: &StatusEvent) -> Vec<(&str, u64, &str)> {
    let counts = event.advice.iter().map(|(reason, advice)| {
        let totals = REFUSALS.map(|(name, label)| total(event, name, Some((label, reason))));
        let count = totals.iter().sum::<f64>() as u64;
        (reason.as_str(), count, advice.as_str())
    });
    let mut refusals: Vec<_> = counts.filter(|(_, count, _)| *count > 0).collect();
    refusals.sort_by_key(|(reason, count, _)| (Reverse(*count), *reason));
    refusals
}

/// The metrics that count refusals, each with its label for the reason.
const REFUSALS: [(&str, &str); 4] = [
    ("peername_connections_total", "outcome"),
    ("peername_udp_dropped_total", "reason"),
    ("peername_intercept_connections_failed_total", "reason"),
    ("peername_intercept_refused_total", "code"),
];

fn row_key(row: &ConnectionSnapshot) -> (Protocol, u64) {
    (row.protocol, row.id)
}
