//! Watches of files in a new directory, and what is noted of them.

use std::pin::pin;

use tempfile::tempdir;

use super::*;

fn noted(file: &Path) -> Fingerprints {
    let mut read = Fingerprints::default();
    read.note(file);
    read
}

/// Otherwise a file whose file system hangs would be read again as soon as an attempt has ended.
#[tokio::test]
async fn change_that_could_not_be_read_waits_for_an_event() {
    let root = tempdir().unwrap();
    let file = root.path().join("list");
    fs::write(&file, "old").unwrap();
    let read = noted(&file);
    fs::write(&file, "changed").unwrap();
    let mut watch = FileWatch::of_configuration(true, read);
    watch.start();
    watch.changed().await;
    watch.defer_to_next_event();
    assert!(timeout(QUIET * 3, watch.changed()).await.is_err());
    fs::write(&file, "changed again").unwrap();
    watch.changed().await;
}

/// Otherwise a file system that hangs would be read again without a pause, where inotify(7) is at a limit.
#[tokio::test]
async fn change_that_could_not_be_read_is_not_tried_at_once_without_a_watch() {
    let root = tempdir().unwrap();
    let mut watch = FileWatch::of_configuration(true, noted(&root.path().join("list")));
    let unwatchable = root.path().join("missing");
    watch.directories.replace(BTreeSet::from([unwatchable]));
    watch.defer_to_next_event();
    assert!(timeout(POLL_INTERVAL * 4, watch.changed()).await.is_err());
    watch.hang_interval = QUIET;
    let cause = timeout(Duration::from_secs(20), watch.changed()).await;
    assert!(matches!(cause, Ok(ReadCause::Retry)));
}

/// The watch ends with a directory that is replaced, although the path leads to a directory again.
#[tokio::test]
async fn file_in_a_directory_that_was_missing_or_replaced_is_watched() {
    for (directory, is_replaced) in [("missing/lists", false), ("lists", true)] {
        let root = tempdir().unwrap();
        let directory = root.path().join(directory);
        let file = directory.join("banned");
        if is_replaced {
            fs::create_dir(&directory).unwrap();
        }
        let mut watch = FileWatch::of_configuration(true, noted(&file));
        watch.start();
        let mut changed = pin!(watch.changed());
        assert!(timeout(QUIET, &mut changed).await.is_err());
        if is_replaced {
            fs::remove_dir(&directory).unwrap();
        }
        fs::create_dir_all(&directory).unwrap();
        assert!(timeout(QUIET * 5, &mut changed).await.is_err());
        fs::write(&file, "192.0.2.7").unwrap();
        timeout(Duration::from_secs(20), changed).await.unwrap();
    }
}

/// The directory of the file is watched, and stays as it is: one further up is renamed, and another takes its place.
#[tokio::test]
async fn file_below_a_directory_that_was_replaced_is_read_again() {
    let root = tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    for (release, text) in [("current", "192.0.2.7"), ("next", "192.0.2.8")] {
        fs::create_dir_all(path(release).join("etc/lists")).unwrap();
        fs::write(path(release).join("etc/lists/banned"), text).unwrap();
    }
    let file = path("current/etc/lists/banned");
    let mut watch = FileWatch::of_configuration(true, noted(&file));
    watch.compare_interval = QUIET;
    watch.start();
    let mut changed = pin!(watch.changed());
    assert!(timeout(QUIET * 5, &mut changed).await.is_err());
    fs::rename(path("current"), path("before")).unwrap();
    fs::rename(path("next"), path("current")).unwrap();
    let cause = timeout(Duration::from_secs(20), changed).await;
    assert!(matches!(cause, Ok(ReadCause::Change)));
}

/// Otherwise a ban that was written while descriptors were short would never be in force.
#[tokio::test]
async fn file_that_could_not_be_read_for_a_while_is_read_again() {
    let mut read = Fingerprints::default();
    // Nothing is mapped at address 0: EIO.
    let memory = Path::new("/proc/self/mem");
    let failed = read.note_read(|_| text_file::read(memory));
    assert!(failed.is_err() && !read.are_current());
    let mut watch = FileWatch::of_configuration(true, read);
    watch.start();
    assert_eq!(watch.changed().await, ReadCause::Retry);
    watch.replace(Fingerprints::default());
    assert!(timeout(RETRY_INTERVAL * 2, watch.changed()).await.is_err());
}

/// Two parts of the configuration may name the same file, and the first read may have seen its earlier state.
#[test]
fn file_that_changed_between_two_reads_is_read_again() {
    let root = tempdir().unwrap();
    let file = root.path().join("list");
    let note = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut read = Fingerprints::default();
        read.note(&file);
        read
    };
    let mut first = note("1");
    first.extend(note("12"));
    assert!(first.is_incomplete() && !first.are_current());
    let mut read = note("1");
    read.note(&file);
    assert!(read.are_current());
}
