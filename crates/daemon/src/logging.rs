//! The log: text for a person at a terminal, fields for the journal, JSON for everything else, written by a thread of its own
//! so that a slow reader causes no backpressure. Lines that do not fit into the queue or can't be written are dropped, and their
//! number is logged. The last 64 KiB are kept until they can be written. Lines of the audit file are not queued: the thread that
//! logs them writes them.

mod batched;
mod go_mmproxy;
pub mod journal;
mod json;
mod level;
mod log_file;

use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ValueEnum};
use peername_observe::admin::LogLevel as _;
use peername_sys::process::stderr::try_write_line;
use tokio::time::sleep;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::options::heading;
use batched::{Batched, KeptLines};
use go_mmproxy::GoMmproxyFormat;
use journal::WithPriority;
use journal::native::{JournalLayer, JournalWriter};
use json::JsonFormat;
pub use level::LevelHandle;
pub use log_file::LogFile;

/// Options of every long-running subcommand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = heading::LOG)]
#[group(skip)]
pub struct LogArgs {
    /// The format of the log [default: text on a terminal, fields in the journal, else json]
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
    pub log_format: Option<Format>,
    /// -v: log a line for each connection at its end; -vv: more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log warnings and errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// The file that lines of one target are written to, instead of the log.
#[derive(Debug)]
pub struct AuditLog {
    /// The target.
    pub target: &'static str,
    /// The file.
    pub file: LogFile,
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for a person
    Text,
    /// An object a line
    Json,
    /// The format of go-mmproxy, on standard output
    #[value(name = "go-mmproxy")]
    GoMmproxy,
}

/// Restricts `--log-format` to the formats of commands that log requests: go-mmproxy's has no line for a request.
pub fn without_go_mmproxy(log_format: Arg) -> Arg {
    let formats = Format::value_variants()
        .iter()
        .filter(|format| **format != Format::GoMmproxy)
        .filter_map(ValueEnum::to_possible_value);
    let names = PossibleValuesParser::new(formats);
    log_format.value_parser(names.try_map(|name| Format::from_str(&name, false)))
}

impl LogArgs {
    /// Starts logging to standard error, or to standard output in the format of go-mmproxy. Lines of the target of `audit` go to
    /// its file instead, whatever the level. Lines that are still queued are written when the guards are dropped. The handle
    /// changes the level. Needs a tokio runtime.
    pub fn start(self, audit: Option<AuditLog>) -> (Vec<LogGuard>, LevelHandle) {
        let (filter, level) = level::filter(self.level(), audit.as_ref().map(|audit| audit.target));
        let (lines, guard): (Lines, _) = if self.log_format.is_none() && journal::native::connect()
        {
            let (writer, guard) = queue(JournalWriter, Arc::default());
            (JournalLayer::new(writer).boxed(), guard)
        } else if self.is_go_mmproxy_format() {
            let (writer, guard) = queue_batched(stdout());
            let format = GoMmproxyFormat::new(level.clone());
            let lines = fmt::layer().with_writer(writer).event_format(format);
            (lines.boxed(), guard)
        } else {
            let (writer, guard) = queue_batched(stderr());
            (self.lines(writer, self.log_format, true), guard)
        };
        let guards = self.install(lines.with_filter(filter).boxed(), guard, audit);
        (guards, level)
    }

    /// Starts logging beside a program that has the same terminal: warnings and errors to standard error, as text; with -v
    /// more, in the format that is asked for. Lines of the target `audit` go to the file instead, as JSON unless text is asked
    /// for; without a file they are written with -v only. Lines that are still queued are written when the guards are dropped.
    /// Needs a tokio runtime.
    pub fn start_beside_program(self, audit: &'static str, file: Option<LogFile>) -> Vec<LogGuard> {
        let (level, format) = match self.verbose {
            0 => (LevelFilter::WARN, self.log_format.or(Some(Format::Text))),
            1 => (LevelFilter::INFO, self.log_format),
            2 => (LevelFilter::DEBUG, self.log_format),
            _ => (LevelFilter::TRACE, self.log_format),
        };
        let audit_level = match self.verbose {
            0 => LevelFilter::OFF,
            _ if file.is_some() => LevelFilter::OFF,
            _ => level,
        };
        let others = Targets::new()
            .with_default(LevelFilter::WARN)
            .with_target("peername", level)
            .with_target(audit, audit_level);
        let (writer, guard) = queue_batched(stderr());
        let lines = self.lines(writer, format, true).with_filter(others);
        let target = audit;
        self.install(
            lines.boxed(),
            guard,
            file.map(|file| AuditLog { target, file }),
        )
    }

    /// Makes these lines the log. Those of the target of `audit` go to its file, as JSON unless text is asked for.
    fn install(self, lines: Lines, guard: LogGuard, audit: Option<AuditLog>) -> Vec<LogGuard> {
        let mut guards = vec![guard];
        let mut layers = vec![lines];
        if let Some(AuditLog { target, file }) = audit {
            let (writer, guard) = write_at_once(file);
            let only_audit = Targets::new().with_target(target, LevelFilter::INFO);
            let lines = self.lines(writer, self.log_format, false);
            layers.push(lines.with_filter(only_audit).boxed());
            guards.push(guard);
        }
        tracing_subscriber::registry().with(layers).init();
        guards
    }

    /// Returns the layer that writes lines in a format: by default text on a terminal, else JSON. Go-mmproxy's has a writer of
    /// its own, in [`LogArgs::start`]. `is_stderr`: the lines go to standard error, which may be a terminal or the journal.
    fn lines(self, writer: impl LineWriter, format: Option<Format>, is_stderr: bool) -> Lines {
        let is_terminal = is_stderr && stderr().is_terminal();
        let is_journal = is_stderr && journal::is_stderr_journal();
        match format {
            Some(Format::Text) => text(writer, is_terminal, is_journal),
            None if is_terminal => text(writer, is_terminal, is_journal),
            Some(Format::Json | Format::GoMmproxy) | None => json(writer, is_journal),
        }
    }

    /// Whether the log has the format of go-mmproxy.
    pub fn is_go_mmproxy_format(self) -> bool {
        self.log_format == Some(Format::GoMmproxy)
    }

    /// The level in force, if `/log-level` has changed it from that of these options.
    pub fn changed_level(self, in_force: &LevelHandle) -> Option<Level> {
        Some(in_force.get()).filter(|&level| level != self.level())
    }

    fn level(self) -> Level {
        if self.quiet {
            return Level::WARN;
        }
        match self.verbose {
            0 => Level::INFO,
            1 => Level::DEBUG,
            _ => Level::TRACE,
        }
    }
}

/// Makes the queue of lines before a writer that is given many lines at once.
fn queue_batched<W: Write + Send + 'static>(writer: W) -> (NonBlocking, LogGuard) {
    let waiting = Arc::<AtomicUsize>::default();
    queue(Batched::new(writer, Arc::clone(&waiting)), waiting)
}

/// Makes the queue of lines before a writer, and starts a task that reports lost lines. `waiting` is the number of lines that
/// the writer keeps because they can't be written yet.
fn queue<W: Write + Send + 'static>(
    writer: W,
    waiting: Arc<AtomicUsize>,
) -> (NonBlocking, LogGuard) {
    let queue = NonBlockingBuilder::default().buffered_lines_limit(MAX_QUEUED_LINES);
    let unwritten = Arc::<AtomicUsize>::default();
    let (writer, guard) = queue.finish(CountingWriter {
        writer,
        unwritten: Arc::clone(&unwritten),
    });
    let guard = LogGuard {
        queue: Some(guard),
        audit: None,
        missing: MissingLines::begin(Some(writer.error_counter()), unwritten, waiting),
    };
    (writer, guard)
}

/// Makes the writer of lines to the audit file, and starts a task that reports lost lines. There is no queue, which could be full
/// at the exit: a write to a file waits for no reader.
fn write_at_once(file: LogFile) -> (impl LineWriter, LogGuard) {
    let (unwritten, waiting) = (Arc::default(), Arc::default());
    let writer = AuditWriter(Arc::new(Mutex::new(CountingWriter {
        writer: KeptLines::new(file, Arc::clone(&waiting)),
        unwritten: Arc::clone(&unwritten),
    })));
    let guard = LogGuard {
        queue: None,
        audit: Some(writer.clone()),
        missing: MissingLines::begin(None, unwritten, waiting),
    };
    (move || writer.clone(), guard)
}

/// Gives a layer its writer.
trait LineWriter: for<'w> MakeWriter<'w> + Send + Sync + 'static {}

impl<T: for<'w> MakeWriter<'w> + Send + Sync + 'static> LineWriter for T {}

/// Writes each line to the audit file before it returns. Never fails: lines that can't be written are kept, or counted.
#[derive(Clone)]
struct AuditWriter(Arc<Mutex<CountingWriter<KeptLines<LogFile>>>>);

impl AuditWriter {
    fn lock(&self) -> MutexGuard<'_, CountingWriter<KeptLines<LogFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for AuditWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut writer = self.lock();
        let _ = writer.write_all(line);
        let _ = writer.flush();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().flush()
    }
}

/// Writes the lines that are still queued or kept when it is dropped, and reports those that can't be written.
pub struct LogGuard {
    queue: Option<WorkerGuard>,
    audit: Option<AuditWriter>,
    missing: MissingLines,
}

impl Drop for LogGuard {
    /// Reports on standard error, because the log has ended.
    fn drop(&mut self) {
        // The thread that writes has then flushed, or hangs.
        drop(self.queue.take());
        if let Some(writer) = &mut self.audit {
            let _ = writer.flush();
        }
        let missing = &self.missing;
        let lines = missing.lost() + missing.waiting.load(Relaxed);
        if lines > missing.reported.load(Relaxed) {
            // Standard error may be the full disk, or the pipe of a slow reader.
            try_write_line(&format!("{lines} {LOST_LINES}"));
        }
    }
}

/// Counts the lines that can't be written, as on a full disk, and are dropped.
struct CountingWriter<W> {
    writer: W,
    unwritten: Arc<AtomicUsize>,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.writer.write(line).inspect_err(|_| {
            self.unwritten.fetch_add(1, Relaxed);
        })
    }

    /// Never fails: after an error, the thread that writes would not end at the exit. The writer counts the lines that it keeps.
    fn flush(&mut self) -> io::Result<()> {
        let _ = self.writer.flush();
        Ok(())
    }
}

fn text(writer: impl LineWriter, is_terminal: bool, is_journal: bool) -> Lines {
    fmt::layer()
        .with_writer(writer)
        .with_target(false)
        .with_ansi(is_terminal)
        .map_event_format(|format| WithPriority { format, is_journal })
        .boxed()
}

fn json(writer: impl LineWriter, is_journal: bool) -> Lines {
    fmt::layer()
        .with_writer(writer)
        .event_format(WithPriority {
            format: JsonFormat,
            is_journal,
        })
        .boxed()
}

/// A layer that writes log lines.
type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// The lines that are not in the log.
#[derive(Clone)]
struct MissingLines {
    /// Lines that did not fit into the queue, if there is one.
    dropped: Option<ErrorCounter>,
    /// Lines that could not be written, and were dropped.
    unwritten: Arc<AtomicUsize>,
    /// Lines that can't be written yet.
    waiting: Arc<AtomicUsize>,
    /// The number of lost lines that was last logged.
    reported: Arc<AtomicUsize>,
}

impl MissingLines {
    /// Starts a task that reports missing lines.
    fn begin(
        dropped: Option<ErrorCounter>,
        unwritten: Arc<AtomicUsize>,
        waiting: Arc<AtomicUsize>,
    ) -> Self {
        let missing = Self {
            dropped,
            unwritten,
            waiting,
            reported: Arc::default(),
        };
        tokio::spawn(missing.clone().report());
        missing
    }

    fn lost(&self) -> usize {
        let dropped = self.dropped.as_ref().map_or(0, ErrorCounter::dropped_lines);
        dropped + self.unwritten.load(Relaxed)
    }

    /// Logs how many lines were lost since the start, whenever the number has grown; and once that lines wait, until none does.
    async fn report(self) {
        let mut is_waiting = false;
        loop {
            sleep(LOST_LINES_INTERVAL).await;
            let lines = self.lost();
            if lines > self.reported.load(Relaxed) {
                tracing::warn!(lines, "{LOST_LINES}");
                self.reported.store(lines, Relaxed);
            }
            let lines = self.waiting.load(Relaxed);
            if lines > 0 && !is_waiting {
                tracing::warn!(
                    lines,
                    "lines of the log can't be written yet; they are written with the next line for which there is space, and lost \
                     if there is none until the exit"
                );
            }
            is_waiting = lines > 0;
        }
    }
}

/// Capacity of the queue in lines. Each slot takes 32 bytes, used or not.
const MAX_QUEUED_LINES: usize = 16 * 1024;
const LOST_LINES: &str =
    "lines of the log were lost since the start: it is read too slowly, or can't be written";
const LOST_LINES_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// More lines than a queue would have. No thread and no guard is waited for.
    #[tokio::test]
    async fn lines_of_the_audit_file_are_written_at_once() {
        const LINES: usize = MAX_QUEUED_LINES + 100;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let file = LogFile::new(LogFile::open_file(&path).unwrap(), Some(&path));
        let (writer, _guard) = write_at_once(file);
        let lines = LogArgs::default().lines(writer, Some(Format::Json), false);
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..LINES {
                tracing::info!("request");
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), LINES);
    }
}
