//! Writes a line into the file of `--log` before each request is sent.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use peername_intercept::admission::{AdmissionLog, AdmittedRequest};
use peername_intercept::authz::RequestKind;
use peername_sys::fs::FileId;
use peername_sys::process::stderr::try_write_line;
use serde_json::json;

/// The file, open for appending.
#[derive(Debug)]
pub(super) struct AdmissionFile {
    file: File,
    has_failed: AtomicBool,
}

impl AdmissionFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            has_failed: AtomicBool::new(false),
        }
    }
}

/// Reports on standard error that another file is at the log's path now: the program may have moved a directory above it.
pub(super) fn warn_if_replaced(path: &Path, log: &Metadata) {
    let is_it = fs::metadata(path).is_ok_and(|about| FileId::from(&about) == FileId::from(log));
    if !is_it {
        try_write_line(&format!(
            "peername: what is at {path:?} is not the log (--log) of this jail: it was moved meanwhile"
        ));
    }
}

impl AdmissionLog for AdmissionFile {
    /// One write(2) for each line, which O_APPEND keeps whole. What was written of a line that did not fit is ended by the next
    /// one's line break.
    fn record(&self, request: &AdmittedRequest<'_>) -> io::Result<()> {
        let line = json!({
            "timestamp": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            "level": "INFO",
            "message": match request.kind {
                RequestKind::Connect => "tunnel admitted",
                RequestKind::Request => "request admitted",
            },
            "id": request.id,
            "host": request.host,
            "port": request.port,
            "method": request.method.as_str(),
            "path": request.path,
        });
        let broken = if self.has_failed.load(Relaxed) {
            "\n"
        } else {
            ""
        };
        let line = format!("{broken}{line}\n");
        let written = (&self.file).write(line.as_bytes()).and_then(|length| {
            let is_whole = length == line.len();
            is_whole
                .then_some(())
                .ok_or_else(|| io::ErrorKind::StorageFull.into())
        });
        let had_failed = self.has_failed.swap(written.is_err(), Relaxed);
        match &written {
            Err(error) if !had_failed => {
                try_write_line(&format!(
                    "peername: --log can't be written: {error}: requests are denied until it can"
                ));
            }
            Ok(()) if had_failed => try_write_line("peername: --log is written again"),
            _ => {}
        }
        written
    }
}
