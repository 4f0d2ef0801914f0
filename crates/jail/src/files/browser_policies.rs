//! Policies that name the interceptor's authority to browsers, which read neither a bundle nor an environment variable.
//!
//! A browser reads policies from a directory below /etc, which is covered by a copy with one more file. A missing directory
//! can't be covered.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use super::cover::{Cover, TrustFiles};
use super::private_dir::PrivateDir;
use crate::JailError;

/// Copies the directories that exist, and adds the interceptor's authority.
pub(super) fn copy(dir: &PrivateDir, trust: &TrustFiles) -> Result<Vec<Cover>, JailError> {
    let mut copies = Vec::new();
    for (number, browser) in BROWSERS.iter().enumerate() {
        let original = Path::new(browser.directory);
        if original.is_dir() {
            let copy = dir.create_copy_dir(&format!("browser-{number}"))?;
            dir.copy_access(original, &copy)?;
            let added = original.join(browser.policy);
            copy_tree(dir, original, &copy, &added, MAX_DEPTH)?;
            let policy = copy.join(browser.policy);
            if !policy.exists() {
                create_parents(&policy)?;
                dir.write(&policy, &browser.format.write_policy(dir, trust))?;
                copies.push(Cover::new(original, copy));
            }
        }
    }
    Ok(copies)
}

/// Copies files and directories; what can't be read, or is too large or too deep, is left out. A symbolic link stays one, because
/// a directory above its target may be closed to some users, unless it leads to `added`, the path of the file to add.
fn copy_tree(
    dir: &PrivateDir,
    from: &Path,
    to: &Path,
    added: &Path,
    depth: usize,
) -> Result<(), JailError> {
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let (original, copy) = (entry.path(), to.join(entry.file_name()));
        let stays_link = original.is_symlink() && !added.starts_with(&original);
        if original.is_dir() && depth > 0 && !stays_link {
            fs::create_dir(&copy).map_err(|source| JailError::write(&copy, source))?;
            dir.copy_access(&original, &copy)?;
            if original.is_symlink() && is_closed_above(&original) {
                dir.set_mode(&copy, 0o700)?;
            }
            copy_tree(dir, &original, &copy, added, depth - 1)?;
        } else if original.is_symlink() {
            if let Ok(target) = fs::canonicalize(&original) {
                symlink(target, &copy).map_err(|source| JailError::write(&copy, source))?;
            }
        } else if let Ok(content) = fs::read(&original)
            && content.len() <= MAX_FILE_BYTES
        {
            dir.write_copy(&original, &copy, &content)?;
        }
    }
    Ok(())
}

/// Whether a directory above the target of a link is closed to some users.
fn is_closed_above(link: &Path) -> bool {
    let is_closed = |dir: &Path| dir.metadata().map_or(true, |dir| dir.mode() & 0o001 == 0);
    fs::canonicalize(link).map_or(true, |target| target.ancestors().skip(1).any(is_closed))
}

fn create_parents(path: &Path) -> Result<(), JailError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|source| JailError::write(parent, source))
}

struct Browser {
    directory: &'static str,
    /// The path of the added file, below the directory.
    policy: &'static str,
    format: PolicyFormat,
}

#[derive(Clone, Copy)]
enum PolicyFormat {
    /// Since Chromium 133. Other files in `managed` apply, too.
    Chromium,
    /// Since Firefox 64.
    Firefox,
}

impl PolicyFormat {
    fn write_policy(self, dir: &PrivateDir, trust: &TrustFiles) -> Vec<u8> {
        match self {
            Self::Chromium => {
                let quoted: Vec<_> = base64_certificates(&trust.authority)
                    .iter()
                    .map(|certificate| format!("\"{certificate}\""))
                    .collect();
                format!("{{\"CACertificates\":[{}]}}\n", quoted.join(","))
            }
            Self::Firefox => format!(
                "{{\"policies\":{{\"Certificates\":{{\"Install\":[{:?}]}}}}}}\n",
                dir.certificates()
            ),
        }
        .into_bytes()
    }
}

/// The certificates of a PEM file, each without its first and last line.
fn base64_certificates(pem: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(pem)
        .split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split("-----END").next())
        .map(|body| body.split_ascii_whitespace().collect())
        .collect()
}

const BROWSERS: [Browser; 4] = [
    chromium("/etc/chromium"),
    chromium("/etc/opt/chrome"),
    chromium("/etc/opt/edge"),
    Browser {
        directory: "/etc/firefox",
        policy: "policies/policies.json",
        format: PolicyFormat::Firefox,
    },
];

const fn chromium(directory: &'static str) -> Browser {
    Browser {
        directory,
        policy: "policies/managed/peername.json",
        format: PolicyFormat::Chromium,
    }
}

const MAX_DEPTH: usize = 4;
const MAX_FILE_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_without_their_delimiters() {
        let pem = b"-----BEGIN CERTIFICATE-----\nAB\nCD==\n-----END CERTIFICATE-----\n\
            -----BEGIN CERTIFICATE-----\nEF\n-----END CERTIFICATE-----\n";
        assert_eq!(base64_certificates(pem), ["ABCD==", "EF"]);
    }
}
