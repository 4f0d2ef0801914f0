//! A file that can't be read for a while.

use super::{Host, Process, Scratch};

/// A file that fails to open (EAGAIN) until this value is dropped, which does not change the file or its times. The kernel
/// breaks the lease behind it after 45 seconds (`leased_file.py`).
#[derive(Debug)]
pub(crate) struct LeasedFile {
    _holder: Process,
}

impl LeasedFile {
    /// Replaces a file by one with this content.
    pub(crate) fn replace(host: &Host, files: &Scratch, name: &str, content: &str) -> Self {
        let path = files.path_text(name);
        let args = ["-uc", LEASED_FILE, &path, content];
        let holder = Process::start(host, "/usr/bin/python3", &args);
        holder.wait_printed("leased");
        Self { _holder: holder }
    }
}

const LEASED_FILE: &str = include_str!("leased_file.py");
