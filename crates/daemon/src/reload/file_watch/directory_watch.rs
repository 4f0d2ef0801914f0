//! Watches directories by inotify(7). A watch may fail at any time, because its user or the kernel has too many.

use std::collections::BTreeSet;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use notify::event::{EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use peername_server::threads::check_free;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The directories that are watched, and those that are to be.
pub(super) struct DirectoryWatch {
    /// The name of what is watched, for the log.
    name: &'static str,
    /// `None` before the first directory, and where none could be created.
    watcher: Option<RecommendedWatcher>,
    /// When one may be created, after a failure.
    retry_at: Instant,
    wanted: BTreeSet<PathBuf>,
    /// Those of the wanted directories that are watched.
    watched: BTreeSet<PathBuf>,
    /// The errors that were logged last; `None` once all directories are watched.
    errors: Option<String>,
    sender: UnboundedSender<Moved>,
    events: UnboundedReceiver<Moved>,
}

/// The watches that an event may have ended.
#[derive(Debug)]
enum Moved {
    /// Those of these paths, at which an entry was removed or replaced.
    Paths(Vec<PathBuf>),
    /// Any: events were lost.
    Unknown,
}

impl DirectoryWatch {
    pub(super) fn new(name: &'static str) -> Self {
        let (sender, events) = unbounded_channel();
        Self {
            name,
            watcher: None,
            retry_at: Instant::now(),
            wanted: BTreeSet::new(),
            watched: BTreeSet::new(),
            errors: None,
            sender,
            events,
        }
    }

    /// The directories that are to be watched.
    pub(super) fn wanted(&self) -> &BTreeSet<PathBuf> {
        &self.wanted
    }

    /// Whether all directories are watched. Otherwise no event may report a change.
    pub(super) fn is_complete(&self) -> bool {
        self.watched == self.wanted
    }

    /// Watches these directories and no others, each anew: another directory may be at the path by now.
    pub(super) fn replace(&mut self, wanted: BTreeSet<PathBuf>) {
        self.unwatch_all();
        self.wanted = wanted;
        self.add_missing();
    }

    /// Watches the directories that are not watched. Returns whether one of them is now. Starts the thread that receives the
    /// kernel's events with the first one. Logs each change of what fails.
    pub(super) fn add_missing(&mut self) -> bool {
        let missing: Vec<_> = self.wanted.difference(&self.watched).cloned().collect();
        if !missing.is_empty() && self.watcher.is_none() {
            if Instant::now() < self.retry_at {
                return false;
            }
            // For an attempt that fails.
            self.retry_at = Instant::now() + RETRY_INTERVAL;
            match new_watcher(&self.sender) {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(error) => {
                    self.log(Some(error.to_string()));
                    return false;
                }
            }
        }
        let mut errors = Vec::new();
        let before = self.watched.len();
        for path in missing {
            let Some(watcher) = &mut self.watcher else {
                continue;
            };
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path);
                }
                Err(mut error) => {
                    error.paths = Vec::new();
                    errors.push(format!("{}: {error}", path.display()));
                }
            }
        }
        self.log((!errors.is_empty()).then(|| errors.join("; ")));
        self.watched.len() > before
    }

    /// Waits for an event. Cancel-safe.
    pub(super) async fn next_event(&mut self) {
        match self.events.recv().await {
            Some(Moved::Paths(paths)) => {
                for path in paths {
                    // A directory that was deleted or renamed is watched no more, or not at this path.
                    if self.watched.remove(&path) {
                        self.unwatch(&path);
                    }
                }
            }
            Some(Moved::Unknown) => self.unwatch_all(),
            // Not possible: this holds a sender.
            None => {}
        }
    }

    fn unwatch_all(&mut self) {
        for path in mem::take(&mut self.watched) {
            self.unwatch(&path);
        }
    }

    /// Otherwise the deletion of a replaced directory would end the watch of its successor.
    fn unwatch(&mut self, path: &Path) {
        if let Some(watcher) = &mut self.watcher {
            // An error is ignored: the directory may have been deleted.
            let _ = watcher.unwatch(path);
        }
    }

    fn log(&mut self, errors: Option<String>) {
        if errors == self.errors {
            return;
        }
        let name = self.name;
        match &errors {
            Some(errors) => tracing::warn!(
                "{name}: can't watch files, so they are compared every {POLL_INTERVAL:?}: {errors}"
            ),
            // No file may be left to watch.
            None if self.wanted.is_empty() => {}
            None => tracing::info!("{name}: all files are watched again"),
        }
        self.errors = errors;
    }
}

fn new_watcher(sender: &UnboundedSender<Moved>) -> notify::Result<RecommendedWatcher> {
    // A watcher whose thread could not be started would panic.
    check_free(2).map_err(notify::Error::io)?;
    let sender = sender.clone();
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Sending fails once this process stops.
        let _ = sender.send(event.map_or(Moved::Unknown, moved));
    })
}

fn moved(event: Event) -> Moved {
    match event.kind {
        _ if event.need_rescan() => Moved::Unknown,
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => Moved::Paths(event.paths),
        _ => Moved::Paths(Vec::new()),
    }
}

/// The interval at which the creation of a watcher is tried again. Each attempt starts threads.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which files are compared whose directory can't be watched.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::fs;

    use notify::event::Flag;
    use tempfile::tempdir;
    use tokio::time::timeout;

    use super::*;

    /// Otherwise a directory that was replaced while events were lost would never be watched again.
    #[tokio::test]
    async fn directories_are_watched_anew_after_lost_events() {
        let root = tempdir().unwrap();
        let directory = root.path().join("lists");
        fs::create_dir(&directory).unwrap();
        let mut watch = DirectoryWatch::new("test");
        watch.replace(BTreeSet::from([directory.clone()]));
        assert!(watch.is_complete());
        fs::remove_dir(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        // The events of the removal are lost.
        while timeout(QUIET, watch.events.recv()).await.is_ok() {}
        let overflow = Event::new(EventKind::Other).set_flag(Flag::Rescan);
        watch.sender.send(moved(overflow)).unwrap();
        watch.next_event().await;
        assert!(!watch.is_complete());
        assert!(watch.add_missing());
        fs::write(directory.join("banned"), "192.0.2.7").unwrap();
        let event = timeout(Duration::from_secs(20), watch.next_event());
        assert!(event.await.is_ok());
    }

    #[tokio::test]
    async fn watcher_is_not_created_before_the_time_of_the_next_try() {
        let root = tempdir().unwrap();
        let mut watch = DirectoryWatch::new("test");
        watch.retry_at += Duration::from_secs(3600);
        watch.replace(BTreeSet::from([root.path().to_owned()]));
        assert!(!watch.is_complete());
        watch.retry_at = Instant::now();
        assert!(watch.add_missing());
        assert!(watch.retry_at > Instant::now());
    }

    const QUIET: Duration = Duration::from_millis(200);
}
