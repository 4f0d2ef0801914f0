//! Sends each event to journald as one entry, which has a field for each field of the event, by journald's native protocol.
//!
//! tracing-journald sends from the thread that logs, so a slow journal would block the event loop; and it sends long entries by
//! memfd_create(2), which the sandboxes of this process and of the units deny. Neither can be changed by its options.

use std::env;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::{Context, Layer};

use super::{is_stderr_journal, priority};

/// Opens the socket to journald if standard error is connected to the journal. To be called before the process is confined:
/// after that, it can't open Unix sockets. Returns whether journald takes entries there.
pub fn connect() -> bool {
    SOCKET
        .get_or_init(|| is_stderr_journal().then(open).and_then(Result::ok))
        .is_some()
}

fn open() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    // An empty datagram is ignored. The socket may be missing in a mount namespace.
    match socket.send_to(&[], SOCKET_PATH) {
        Err(error) if !is_full(&error) => Err(error),
        _ => Ok(socket),
    }
}

/// Encodes each event as an entry, and queues the entry for a [`JournalWriter`].
pub struct JournalLayer {
    queue: NonBlocking,
    identifier: String,
}

impl JournalLayer {
    /// Makes the layer. SYSLOG_IDENTIFIER is the name that this program was called by, as in journald's entries of its standard
    /// error.
    pub fn new(queue: NonBlocking) -> Self {
        let called = env::args_os().next().unwrap_or_default();
        let name = Path::new(&called).file_name().unwrap_or_default();
        Self {
            queue,
            identifier: name.to_string_lossy().into_owned(),
        }
    }
}

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = DefaultFields::new().format_fields(Writer::new(&mut text), event);
        let mut entry = Entry::default();
        // First, because `write_line` reads it there.
        entry.push("PRIORITY", &priority(*event.metadata().level()).to_string());
        entry.push("SYSLOG_IDENTIFIER", &self.identifier);
        entry.push("SYSLOG_FACILITY", FACILITY_DAEMON);
        entry.push("MESSAGE", cut(&text, MAX_MESSAGE));
        event.record(&mut entry);
        // The queue counts the entries that it drops, and has no other error.
        let _ = self.queue.clone().write_all(&entry.0);
    }
}

/// An entry in the native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL>). It never exceeds [`MAX_ENTRY`]: values that
/// do not fit are truncated, and fields without room for their name left out.
#[derive(Default)]
struct Entry(Vec<u8>);

impl Entry {
    fn push(&mut self, name: &str, value: &str) {
        let overhead = self.0.len() + name.len() + LENGTH_OVERHEAD;
        let Some(max) = MAX_ENTRY.checked_sub(overhead) else {
            return;
        };
        let value = cut(value, max);
        self.0.extend(name.as_bytes());
        if value.contains('\n') {
            self.0.push(b'\n');
            self.0.extend((value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend(value.as_bytes());
        self.0.push(b'\n');
    }

    /// Adds a field of the event. In a name only `A` to `Z`, digits and `_` are valid.
    fn push_field(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return;
        }
        let name = field.name().chars().map(|c| match c {
            c if c.is_ascii_alphanumeric() => c.to_ascii_uppercase(),
            _ => '_',
        });
        let name: String = PREFIX.chars().chain(name).collect();
        self.push(&name, value);
    }
}

/// Numbers and booleans are recorded by their `Debug` too.
impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // An error comes from the value's own `fmt`; the text before it is kept.
        let _: fmt::Result = write!(text, "{value:?}");
        self.push_field(field, &text);
    }
}

/// Cuts a text to at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Sends each entry that is written to it as one datagram. Blocks while journald does not read or is not running. Meanwhile,
/// further entries wait in the queue before the writer.
pub struct JournalWriter;

impl Write for JournalWriter {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let Some(Some(socket)) = SOCKET.get() else {
            return Ok(entry.len());
        };
        loop {
            // The path is resolved each time, because a restart of journald's socket unit replaces the socket.
            match socket.send_to(entry, SOCKET_PATH) {
                Ok(_) => return Ok(entry.len()),
                Err(error) if is_full(&error) => {}
                Err(error) if is_absent(&error) => thread::sleep(RETRY_INTERVAL),
                Err(_) => break write_line(entry),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes an entry that can't be sent to standard error, which leads to the journal too: the kernel's limit for a datagram
/// (net.core.wmem_default) may be lower than [`MAX_ENTRY`].
fn write_line(entry: &[u8]) -> io::Result<usize> {
    let text = String::from_utf8_lossy(entry);
    let (priority, text) = text
        .strip_prefix("PRIORITY=")
        .and_then(|text| text.split_once('\n'))
        .unwrap_or(("6", &text));
    writeln!(io::stderr(), "<{priority}>{}", text.replace('\n', " "))?;
    Ok(entry.len())
}

/// Whether journald has not read for [`SEND_TIMEOUT`].
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Whether journald's socket is being replaced.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

/// `None` without a journal. Stays open until the process exits.
static SOCKET: OnceLock<Option<UnixDatagram>> = OnceLock::new();
/// From systemd-journald.service(8).
const SOCKET_PATH: &str = "/run/systemd/journal/socket";
/// Precedes the names of fields, so that they do not clash with those of systemd.journal-fields(7) (docs/logs.md).
const PREFIX: &str = "PEERNAME_";
/// LOG_DAEMON of syslog(3), as journald assigns to standard error.
const FACILITY_DAEMON: &str = "3";
/// Below the kernel's default limit for a datagram, 212,992 bytes. Only a long list of listeners comes near.
const MAX_ENTRY: usize = 192 * 1024;
/// `MESSAGE` repeats all fields for people. journald truncates a line of standard error to the same length.
const MAX_MESSAGE: usize = 48 * 1024;
/// Two newlines and the length of a value.
const LENGTH_OVERHEAD: usize = 10;
/// How long the start waits for a journald that does not read. Later sends are repeated after this time.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_value_stay_in_the_value() {
        let mut entry = Entry::default();
        entry.push("MESSAGE", "one\nPRIORITY=0");
        entry.push("PEERNAME_CODE", "x");
        let expected = b"MESSAGE\n\x0e\0\0\0\0\0\0\0one\nPRIORITY=0\nPEERNAME_CODE=x\n";
        assert_eq!(entry.0, expected);
    }

    #[test]
    fn entry_never_exceeds_its_limit() {
        let mut entry = Entry::default();
        for name in ["A", "B", "C"] {
            entry.push(name, &"\n\u{e9}".repeat(MAX_ENTRY / 6));
        }
        assert!(entry.0.len() <= MAX_ENTRY);
        assert!(entry.0.windows(3).any(|bytes| bytes == b"\nB\n"));
    }
}
