//! Finds the host's files that are hidden from the program, and refuses other paths by which the program could reach them.

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use peername_daemon::usage::UsageError;
use peername_intercept::ca::Authority;
use peername_observe::shell::quote;

use super::options::Args;

/// The paths that the program sees empty: those of `--hide`, and the secrets of the interceptor (files of `--inject` and
/// `--check-key`, and the directory of `--ca`).
pub(super) fn hidden_paths(args: &Args) -> Result<Vec<PathBuf>, UsageError> {
    let options = &args.intercept.0;
    let hide = args.hide.iter().map(PathBuf::as_path);
    args.check_hidden_paths()?;
    let paths_by_option = [
        ("--hide", hide.collect::<Vec<_>>()),
        ("--ca", args.ca().into_iter().collect()),
        ("--inject", options.injected_files().collect()),
        (
            "--check-key",
            options.check.tls.key_file().into_iter().collect(),
        ),
    ];
    let mut hidden = Vec::new();
    for (option, paths) in paths_by_option {
        for path in paths {
            let path = HiddenPath::resolve(option, path)?;
            path.refuse_needed()?;
            hidden.push(path.resolved);
        }
    }
    Ok(outermost(hidden))
}

/// Hides the file of `--log`, too, unless it is a device, such as a terminal. The file exists by now.
pub(super) fn hide_log(args: &Args, hidden: &mut Vec<PathBuf>) {
    let file = args.log().and_then(|path| path.canonicalize().ok());
    if let Some(file) = file.filter(|path| !is_character_device(path))
        && !hidden.iter().any(|above| file.starts_with(above))
    {
        hidden.push(file);
    }
}

fn is_character_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// Refuses secrets with several hard links: a cover hides one name, and an earlier program may have made another.
pub(super) fn refuse_hard_links(args: &Args) -> Result<(), UsageError> {
    let authority = args.ca().map(Authority::file);
    let secrets = args.intercept.0.secret_files();
    for path in secrets.chain(authority.as_deref()).chain(args.log()) {
        if let Ok(metadata) = path.metadata()
            && metadata.is_file()
            && metadata.nlink() > 1
        {
            // find(1) and mv(1) would take a symbolic link itself.
            let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let copy = path.with_extension("copy");
            let (file, copy) = (quote(&path), quote(&copy));
            return Err(UsageError(format!(
                "{} has another name (a hard link), by which the program would reach it: `find / -samefile {file}` prints all \
                 its names; remove the others, or, where the program can't read these, replace the file by a copy: \
                 `cp -p {file} {copy} && mv {copy} {file}`",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a directory as a standard stream: from an inherited directory, openat(2) reaches every file below it, past covers.
pub(super) fn refuse_directories_as_streams() -> Result<(), UsageError> {
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [
        ("input", input.as_fd()),
        ("output", output.as_fd()),
        ("error", error.as_fd()),
    ];
    for (name, stream) in streams {
        if is_directory(stream) {
            return Err(UsageError(format!(
                "standard {name} is a directory, by which the program would reach hidden files: redirect it"
            )));
        }
    }
    Ok(())
}

fn is_directory(stream: BorrowedFd<'_>) -> bool {
    stream
        .try_clone_to_owned()
        .and_then(|fd| File::from(fd).metadata())
        .is_ok_and(|metadata| metadata.is_dir())
}

/// A path that the program is to see empty.
struct HiddenPath<'a> {
    option: &'static str,
    /// As it was given.
    path: &'a Path,
    resolved: PathBuf,
}

impl<'a> HiddenPath<'a> {
    /// Resolves symbolic links, because a mount covers their target.
    fn resolve(option: &'static str, path: &'a Path) -> Result<Self, UsageError> {
        let absolute = std::path::absolute(path)
            .map_err(|error| UsageError(format!("{option} {}: {error}", path.display())))?;
        Ok(Self {
            option,
            path,
            resolved: absolute.canonicalize().unwrap_or(absolute),
        })
    }

    /// Refuses directories that the jail or the program needs: that of temporary files, and those above the working directory.
    fn refuse_needed(&self) -> Result<(), UsageError> {
        let Self { option, .. } = self;
        let path = self.path.display();
        let temporary = env::temp_dir();
        let temporary = temporary.canonicalize().unwrap_or(temporary);
        if temporary.starts_with(&self.resolved) {
            return Err(UsageError(format!(
                "{option} {path}: the jail's own files are in {}: set TMPDIR to another directory",
                temporary.display()
            )));
        }
        // The working directory itself may be hidden: the program sees it empty.
        if let Ok(working) = env::current_dir()
            && working != self.resolved
            && working.starts_with(&self.resolved)
        {
            return Err(UsageError(format!(
                "{option} {path}: the working directory is below it: change to another one"
            )));
        }
        Ok(())
    }
}

/// Drops paths below another one, which covers them.
fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    let mut outermost: Vec<PathBuf> = Vec::new();
    for path in paths {
        if outermost
            .last()
            .is_none_or(|above| !path.starts_with(above))
        {
            outermost.push(path);
        }
    }
    outermost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_others_are_left_out() {
        let paths = ["/a/b", "/a", "/ab", "/c/d/e", "/c/d"].map(PathBuf::from);
        let left = ["/a", "/ab", "/c/d"].map(PathBuf::from);
        assert_eq!(outermost(paths.to_vec()), left);
    }
}
