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

/// The file of `--log`, open for appending.
#[derive(Debug)]
pub(super) struct AdmissionFile {
    file: File,
    has_last_write_failed: AtomicBool,
}

impl AdmissionFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            has_last_write_failed: AtomicBool::new(false),
        }
    }
}

/// Reports on standard error that another file is at the log's path now: the program may have moved a directory above it.
pub(super) fn warn_if_replaced(path: &Path, log: &Metadata) {
    let is_log = fs::metadata(path).is_ok_and(|found| FileId::from(&found) == FileId::from(log));
    if !is_log {
        try_write_line(&format!(
            "peername: the log (--log) of this jail was moved: {path:?} is another file now"
        ));
    }
}

impl AdmissionLog for AdmissionFile {
    /// Writes the line by one write(2), which O_APPEND keeps whole. After a short write, the next line begins with a line
    /// break, which ends the fragment.
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
        let line_break = if self.has_last_write_failed.load(Relaxed) {
            "\n"
        } else {
            ""
        };
        let line = format!("{line_break}{line}\n");
        let written = (&self.file).write(line.as_bytes()).and_then(|length| {
            if length < line.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(())
        });
        let had_failed = self.has_last_write_failed.swap(written.is_err(), Relaxed);
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
