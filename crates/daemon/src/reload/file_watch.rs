//! Watches the files of the configuration (`--watch`), and those of lists of clients.
//!
//! The directories of the files are watched, not the files: an editor replaces a file by another with its name, and a
//! Kubernetes ConfigMap replaces a symbolic link to a directory (`..data`). Whether a file has changed is decided by its
//! metadata, so that events of other files of a directory cause no reload. Files are also compared periodically, because a
//! directory further up may be renamed; and more often while a directory can't be watched.

mod directory_watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf, absolute};
use std::time::Duration;

use directory_watch::{DirectoryWatch, POLL_INTERVAL};
use peername_sys::fs::text_file;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::bounded_calls::BoundedCalls;

/// The state of each file at the time it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fingerprints {
    /// `None` where stat(2) failed.
    files: BTreeMap<PathBuf, Option<Fingerprint>>,
    /// Whether a file could not be read for a reason that may pass without a change of the file.
    is_incomplete: bool,
}

/// The reason to read files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadCause {
    /// A file has changed.
    Change,
    /// The last read was incomplete ([`Fingerprints::is_incomplete()`]).
    Retry,
}

/// Metadata of a file that differ after a change.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    ctime: (i64, i64),
}

/// Reports changes of files; disabled, it never does.
pub struct FileWatch {
    is_enabled: bool,
    /// A change is reported once no event has come for this time.
    quiet: Duration,
    /// A change is reported after this time, even if events of its directory go on.
    max_delay: Duration,
    /// How long files that could not be read are left alone where no event may come.
    hang_interval: Duration,
    /// The interval at which files are compared whose directories are all watched: no event reports the rename of a directory
    /// further up.
    compare_interval: Duration,
    /// The files of the last read, which may have been refused.
    read: Fingerprints,
    /// The files as they were read for the configuration in force.
    in_force: Fingerprints,
    /// Whether files are compared only once an event has come.
    awaits_event: bool,
    /// Reads the metadata of the files.
    metadata: BoundedCalls,
    directories: DirectoryWatch,
}

impl Fingerprints {
    /// Notes a file that is about to be read.
    pub fn note(&mut self, path: &Path) {
        self.add(path.to_owned(), fingerprint(path));
    }

    /// Adds a file. It may be noted twice; if it has changed in between, the first reader may have read its earlier state.
    fn add(&mut self, path: PathBuf, state: Option<Fingerprint>) {
        let before = self.files.insert(path, state);
        self.is_incomplete |= before.is_some_and(|before| before != state);
    }

    /// Notes several files.
    pub fn note_all<'a>(&mut self, paths: impl IntoIterator<Item = &'a Path>) {
        paths.into_iter().for_each(|path| self.note(path));
    }

    /// Runs `read` on this thread, and notes whether it was incomplete. `read` notes each file before it reads the file.
    pub fn note_read<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let before = text_file::transient_failures();
        let result = read(self);
        self.is_incomplete |= text_file::transient_failures() != before;
        result
    }

    /// Whether a file could not be read for a reason that may pass without a change of the file, such as too many open files,
    /// or has changed between two reads. The files must be read again then, because no event will report a change.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Adds the files of another one.
    pub fn extend(&mut self, other: Self) {
        self.is_incomplete |= other.is_incomplete;
        for (path, state) in other.files {
            self.add(path, state);
        }
    }

    /// The directories in which a change of an entry may change a file.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        self.files
            .keys()
            .flat_map(|file| directories(file))
            .collect()
    }

    /// The files that were read before in another state.
    fn changed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Path> {
        self.files
            .iter()
            .filter(|(path, state)| before.files.get(*path).is_some_and(|old| old != *state))
            .map(|(path, _)| path.as_path())
    }

    /// Whether all files have been read, and are as they were.
    pub fn are_current(&self) -> bool {
        !self.is_incomplete
            && self
                .files
                .iter()
                .all(|(path, before)| fingerprint(path) == *before)
    }
}

impl FileWatch {
    /// A watch of the configuration's files; [`FileWatch::start`] begins it.
    pub fn of_configuration(is_enabled: bool, read: Fingerprints) -> Self {
        Self {
            is_enabled,
            in_force: read.clone(),
            read,
            ..Self::new("--watch", QUIET, MAX_DELAY)
        }
    }

    /// A watch of lists of clients, which begins with the first file.
    pub fn of_lists() -> Self {
        Self::new("lists of clients", LISTS_QUIET, LISTS_MAX_DELAY)
    }

    fn new(name: &'static str, quiet: Duration, max_delay: Duration) -> Self {
        Self {
            is_enabled: true,
            quiet,
            max_delay,
            hang_interval: HANG_INTERVAL,
            compare_interval: COMPARE_INTERVAL,
            read: Fingerprints::default(),
            in_force: Fingerprints::default(),
            awaits_event: false,
            metadata: BoundedCalls::new(1),
            directories: DirectoryWatch::new(name),
        }
    }

    /// Begins the watch, unless it is disabled. Call it after privileges are dropped, because it starts a thread, and each
    /// thread has its own.
    pub fn start(&mut self) {
        if self.is_enabled {
            self.directories.replace(self.read.directories());
        }
    }

    /// Watches these files from now on. Begins the watch, unless it is disabled or there are none.
    pub fn replace(&mut self, read: Fingerprints) {
        self.read = read;
        self.awaits_event = false;
        // A call may still hang at a file that is not watched any more.
        self.metadata = BoundedCalls::new(1);
        self.start();
    }

    /// Notes that what was last read is in force now. Returns the files that have changed since this was noted before: refused
    /// reloads may have read them in between.
    pub fn note_in_force(&mut self) -> Vec<PathBuf> {
        let changed = self.read.changed_since(&self.in_force);
        let changed = changed.map(PathBuf::from).collect();
        self.in_force = self.read.clone();
        changed
    }

    /// Defers the next comparison to the next event, because the files could not be read: a file system may hang.
    pub fn defer_to_next_event(&mut self) {
        self.awaits_event = true;
    }

    /// Waits until a file differs from what was read, and no further event has come for a moment; or for a second, if the read
    /// was incomplete. Files whose directory can't be watched are compared at an interval. Cancel-safe.
    pub async fn changed(&mut self) -> ReadCause {
        if !self.is_enabled {
            return std::future::pending().await;
        }
        loop {
            if !self.awaits_event {
                if self.read.is_incomplete {
                    sleep(RETRY_INTERVAL).await;
                    return ReadCause::Retry;
                }
                match self.compare().await {
                    Comparison::Same => {}
                    // Reading the files finds out which of them hangs.
                    Comparison::Hangs => return ReadCause::Change,
                    Comparison::Changed => {
                        self.wait_quiet().await;
                        if self.compare().await != Comparison::Same {
                            return ReadCause::Change;
                        }
                    }
                }
                if self.follow_directories().await {
                    continue;
                }
            }
            if self.wait_event().await {
                self.awaits_event = false;
                self.wait_quiet().await;
            } else if self.awaits_event {
                // It may never be reported that the files can be read again.
                return ReadCause::Retry;
            }
        }
    }

    /// Waits for an event, or until the files differ from what was read; then returns `true`. Where a directory is not watched,
    /// returns `false` after [`POLL_INTERVAL`], or after `hang_interval` if the files could not be read.
    async fn wait_event(&mut self) -> bool {
        if self.directories.is_complete() {
            let interval = if self.awaits_event || self.read.files.is_empty() {
                Duration::MAX
            } else {
                self.compare_interval
            };
            while timeout(interval, self.directories.next_event())
                .await
                .is_err()
            {
                // A file system that hangs is no reason to read from it.
                if self.compare().await == Comparison::Changed {
                    break;
                }
            }
            return true;
        }
        let interval = if self.awaits_event {
            self.hang_interval
        } else {
            POLL_INTERVAL
        };
        timeout(interval, self.directories.next_event())
            .await
            .is_ok()
    }

    /// Watches other directories if a missing one has appeared, or a symbolic link leads elsewhere; and those that could not be
    /// watched before. Returns whether it watches any: then a file may have changed before its directory was watched.
    async fn follow_directories(&mut self) -> bool {
        match self.read_metadata(Fingerprints::directories).await {
            Some(wanted) if wanted != *self.directories.wanted() => {
                self.directories.replace(wanted);
                true
            }
            Some(_) => self.directories.add_missing(),
            None => false,
        }
    }

    async fn compare(&self) -> Comparison {
        match self.read_metadata(Fingerprints::are_current).await {
            Some(true) => Comparison::Same,
            Some(false) => Comparison::Changed,
            None => Comparison::Hangs,
        }
    }

    /// Reads metadata of the files on a thread of its own, because a network file system may hang. `None` if it does, or if an
    /// earlier call still hangs.
    async fn read_metadata<T: Send + 'static>(&self, read: fn(&Fingerprints) -> T) -> Option<T> {
        let files = self.read.clone();
        let reading = self.metadata.run(move || read(&files));
        timeout(METADATA_TIMEOUT, reading).await.ok()?.ok()
    }

    async fn wait_quiet(&mut self) {
        let end = Instant::now() + self.max_delay;
        let quiet = async {
            while timeout(self.quiet, self.directories.next_event())
                .await
                .is_ok()
            {}
        };
        let _ = timeout_at(end, quiet).await;
    }
}

/// The result of comparing files with their fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Same,
    Changed,
    /// Their file system does not answer.
    Hangs,
}

fn fingerprint(path: &Path) -> Option<Fingerprint> {
    let metadata = fs::metadata(path).ok()?;
    Some(Fingerprint {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        ctime: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// Finds the directories in which a change of an entry may change the file: that of the file, and that of each symbolic link on
/// the way to it. If a directory is missing, it is the one in which the missing directory would be.
fn directories(file: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut current = PathBuf::from("/");
    let mut names = split(&absolute(file).unwrap_or_else(|_| file.to_owned()));
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        if name == ".." {
            current.pop();
            continue;
        }
        let next = current.join(&name);
        match fs::read_link(&next) {
            Ok(target) if links < MAX_LINKS => {
                links += 1;
                found.insert(current.clone());
                if target.is_absolute() {
                    current = PathBuf::from("/");
                }
                let mut target = split(&target);
                target.append(&mut names);
                names = target;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                found.insert(current);
                return found;
            }
            _ if names.is_empty() => {
                found.insert(current.clone());
            }
            _ => current = next,
        }
    }
    found
}

/// Splits a path into the names of its components, `..` included.
fn split(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

/// Editors and ConfigMaps change several entries one after the other.
const QUIET: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(3);
/// A ban should be in force within a second, and bans come in bursts.
const LISTS_QUIET: Duration = Duration::from_millis(50);
const LISTS_MAX_DELAY: Duration = Duration::from_millis(300);
/// A ban should be in force within a second of the time from which it can be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which a reload is tried whose files could not be read: each try waits for a minute, and a signal to upgrade
/// waits for it.
const HANG_INTERVAL: Duration = Duration::from_secs(300);
/// See [`FileWatch`]. A stat(2) of each file at this interval is no load.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);
/// A file system in the network answers within a second, or not at all.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// As the kernel's limit (path_resolution(7)).
const MAX_LINKS: usize = 40;

#[cfg(test)]
mod tests;
