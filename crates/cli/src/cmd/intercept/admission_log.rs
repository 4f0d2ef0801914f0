//! Writes a line into the file of `--log` before each request is sent.

use std::fs::{self, Metadata};
use std::io;
use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use peername_daemon::logging::LogFile;
use peername_intercept::admission::{AdmissionLog, AdmittedRequest};
use peername_intercept::authz::RequestKind;
use peername_sys::fs::FileId;
use peername_sys::process::stderr::try_write_line;
use serde_json::json;

/// The file of `--log`, open for appending.
#[derive(Debug)]
pub(super) struct AdmissionFile {
    file: LogFile,
    /// Held during a write: another worker's would otherwise not know yet that this one leaves a fragment.
    has_last_write_failed: Mutex<bool>,
}

impl AdmissionFile {
    /// Makes the log, which the workers share.
    pub(super) fn shared(file: LogFile) -> Arc<dyn AdmissionLog> {
        Arc::new(Self {
            file,
            has_last_write_failed: Mutex::new(false),
        })
    }
}

/// Reports on standard error that the log is no longer at its path: the program may have moved a directory above it.
pub(super) fn warn_if_replaced(path: &Path, log: &Metadata) {
    let is_log = fs::metadata(path).is_ok_and(|found| FileId::from(&found) == FileId::from(log));
    if !is_log {
        try_write_line(&format!(
            "peername: the log (--log) of this jail is no longer at {path:?}: it was moved, replaced or removed"
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
        let mut has_last_failed = self
            .has_last_write_failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let line_break = if *has_last_failed { "\n" } else { "" };
        let line = format!("{line_break}{line}\n");
        let written = self.file.append(line.as_bytes()).and_then(|length| {
            if length < line.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(())
        });
        let had_failed = mem::replace(&mut *has_last_failed, written.is_err());
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
