//! Writes a line into the file of `--log` before each request is sent.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
    has_last_write_failed: AtomicBool,
}

impl AdmissionFile {
    /// Makes the log, which the workers share.
    pub(super) fn shared(file: LogFile) -> Arc<dyn AdmissionLog> {
        Arc::new(Self {
            file,
            has_last_write_failed: AtomicBool::new(false),
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
    fn record(&self, request: &AdmittedRequest<'_>) -> io::Result<()> {
        let mut line = json!({
            "timestamp": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            "level": "INFO",
            "message": match request.kind {
                RequestKind::Connect => "tunnel admitted",
                RequestKind::Request => "request admitted",
            },
            "id": request.id,
            "connection": request.connection,
            "client": request.client,
            "host": request.host,
            "port": request.port,
            "method": request.method.as_str(),
            "path": request.path,
        });
        if let Some(user) = &request.user {
            line["user"] = (&**user).into();
        }
        let written = self.file.append_line(format!("{line}\n").as_bytes());
        let had_failed = self.has_last_write_failed.swap(written.is_err(), Relaxed);
        match &written {
            Err(error) if !had_failed => {
                tracing::warn!("--log can't be written: {error}: requests are denied until it can");
            }
            // A warning, too, because a jail logs nothing less.
            Ok(()) if had_failed => tracing::warn!("--log is written again"),
            _ => {}
        }
        written
    }
}
