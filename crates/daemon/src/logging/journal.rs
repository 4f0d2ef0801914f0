//! The journal of systemd: entries with fields by its native protocol, or lines with their syslog priority as prefix, which
//! journald(8) parses and removes (sd-daemon(3)).

pub mod native;

use std::env;
use std::fmt;
use std::fs::File;
use std::io::stderr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether standard error is connected to the journal: JOURNAL_STREAM names its device and inode (systemd.exec(5)).
pub fn is_stderr_journal() -> bool {
    let Ok(journal) = env::var("JOURNAL_STREAM") else {
        return false;
    };
    stderr()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|fd| File::from(fd).metadata())
        .is_ok_and(|metadata| format!("{}:{}", metadata.dev(), metadata.ino()) == journal)
}

/// Formats an event by `format`. In the journal, the priority precedes it.
pub(super) struct WithPriority<F> {
    pub(super) format: F,
    pub(super) is_journal: bool,
}

impl<S, N, F> FormatEvent<S, N> for WithPriority<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.is_journal {
            write!(writer, "<{}>", priority(*event.metadata().level()))?;
        }
        self.format.format_event(context, writer, event)
    }
}

/// The number of the level by syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
