//! `peername top`: the state of a running command in a terminal, from its admin endpoint.

mod app;
mod client;
mod format;
mod screen;
mod summary;
mod text;

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use peername_daemon::command::block_on;
use peername_daemon::usage::error_text::with_causes;
use peername_observe::admin::AdminAddr;
use peername_observe::admin::events::StatusEvent;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::admin_client::AdminClient;
pub(crate) use app::refusals;
use app::{Action, App};
use client::EventStream;

/// Options of `peername top`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername top --admin 127.0.0.1:9100")]
pub(crate) struct Args {
    /// The endpoint of the running command, as in its own --admin
    #[arg(long, value_name = "ADDR|unix:PATH")]
    admin: AdminAddr,
}

/// Shows the state until `q` is pressed; without a terminal, prints it once.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    block_on(async {
        let client = AdminClient(args.admin.clone());
        let mut events = client.events().await?;
        let first = first_event(&mut events).await?;
        if stdin().is_terminal() && stdout().is_terminal() {
            show(client, events, first).await?;
        } else {
            stdout().write_all(text::render(&first).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The state of the command that serves this endpoint.
pub(crate) async fn current_status(client: &AdminClient) -> anyhow::Result<StatusEvent> {
    first_event(&mut client.events().await?).await
}

async fn first_event(events: &mut EventStream) -> anyhow::Result<StatusEvent> {
    let first = timeout(FIRST_EVENT_WITHIN, events.next())
        .await
        .context("GET /events: no event comes")??;
    first.context("GET /events: the process ended the stream")
}

/// Shows the state in the terminal until `q` is pressed or SIGTERM comes.
async fn show(client: AdminClient, events: EventStream, first: StatusEvent) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate()).context("sigaction(2)")?;
    let mut terminal = ratatui::try_init().context("preparing the terminal")?;
    let app = App::new(first, client.may_change());
    let outcome = tokio::select! {
        outcome = interact(&mut terminal, client, events, app) => outcome,
        _ = stop.recv() => Ok(()),
    };
    ratatui::try_restore().context("restoring the terminal")?;
    outcome
}

async fn interact(
    terminal: &mut ratatui::DefaultTerminal,
    client: AdminClient,
    events: EventStream,
    mut app: App,
) -> anyhow::Result<()> {
    let mut keys = read_keys();
    let mut updates = follow(client.clone(), events);
    loop {
        terminal
            .draw(|frame| screen::draw(frame, &app))
            .context("write(2) to the terminal")?;
        tokio::select! {
            Some(update) = updates.recv() => match update {
                Ok(event) => app.update(event),
                Err(error) => app.report_lost(&error),
            },
            // After any other event, such as another size, the screen is drawn again.
            Some(event) = keys.recv() => if let Event::Key(key) = event.context("read(2) from the terminal")? {
                match app.press(key) {
                    Action::None => {}
                    Action::Quit => return Ok(()),
                    Action::Close(id) => app.report(close(&client, id).await),
                }
            },
        }
    }
}

async fn close(client: &AdminClient, id: u64) -> String {
    match client.close(id).await {
        Ok(()) => format!("connection {id} was closed"),
        Err(error) => with_causes(&error),
    }
}

/// Forwards the events of a stream, and opens another stream when it ends: the process drains, was replaced, or has exited.
fn follow(client: AdminClient, events: EventStream) -> mpsc::Receiver<Update> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut stream = Some(events);
        while !sender.is_closed() {
            if let Some(events) = &mut stream {
                forward_events(events, &sender).await;
            }
            sleep(RECONNECT_DELAY).await;
            stream = match client.events().await {
                Ok(events) => Some(events),
                Err(error) => {
                    let _ = sender.send(Err(error)).await;
                    None
                }
            };
        }
    });
    receiver
}

/// Forwards the events of one stream until it ends.
async fn forward_events(events: &mut EventStream, sender: &mpsc::Sender<Update>) {
    while let Some(update) = events.next().await.transpose() {
        let is_error = update.is_err();
        if sender.send(update).await.is_err() || is_error {
            return;
        }
    }
}

/// Reads the terminal on a thread of its own, which ends with the process: read(2) blocks.
fn read_keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        loop {
            let event = event::read();
            let has_failed = event.is_err();
            if sender.blocking_send(event).is_err() || has_failed {
                return;
            }
        }
    });
    receiver
}

type Update = anyhow::Result<StatusEvent>;

const RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Longer than the endpoint waits for the workers' parts of an event.
const FIRST_EVENT_WITHIN: Duration = Duration::from_secs(10);
