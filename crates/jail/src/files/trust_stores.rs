//! Where distributions and Java keep the authorities that programs trust.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The bundles of this host (PEM): the files that the well-known names lead to.
pub(super) fn bundles() -> BTreeSet<PathBuf> {
    existing(BUNDLES.iter().map(PathBuf::from))
}

/// The keystores of this host: those that distributions make, and those of each Java that is found.
pub(super) fn java() -> BTreeSet<PathBuf> {
    let of_distribution = JAVA.iter().map(PathBuf::from);
    let user = env::var_os("HOME").map(PathBuf::from);
    let of_user = user
        .iter()
        .flat_map(|home| USER_JAVAS.map(|javas| home.join(javas)));
    let homes = of_user
        .chain([PathBuf::from("/usr/lib/jvm")])
        .flat_map(|javas| fs::read_dir(javas).into_iter().flatten())
        .filter_map(|entry| Some(entry.ok()?.path()))
        .chain(env::var_os("JAVA_HOME").map(PathBuf::from))
        .chain(java_on_path());
    let of_homes = homes.flat_map(|home| {
        ["lib/security/cacerts", "jre/lib/security/cacerts"].map(|file| home.join(file))
    });
    existing(of_distribution.chain(of_homes))
}

/// The home of the Java that is on the search path: the parent of its `bin`.
fn java_on_path() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let java = env::split_paths(&path).find_map(|dir| dir.join("java").canonicalize().ok())?;
    Some(java.parent()?.parent()?.to_owned())
}

fn existing(paths: impl Iterator<Item = PathBuf>) -> BTreeSet<PathBuf> {
    let files = paths.filter_map(|path| path.canonicalize().ok());
    files.filter(|path| Path::is_file(path)).collect()
}

const BUNDLES: [&str; 9] = [
    // Debian, Alpine, Arch, Gentoo.
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    // Debian's OpenSSL.
    "/usr/lib/ssl/cert.pem",
    // Fedora and its derivatives.
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/certs/ca-bundle.crt",
    // SUSE.
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
];
/// Where SDKMAN, IntelliJ, Gradle, asdf and mise install each Java, below the user's directory.
const USER_JAVAS: [&str; 5] = [
    ".sdkman/candidates/java",
    ".jdks",
    ".gradle/jdks",
    ".asdf/installs/java",
    ".local/share/mise/installs/java",
];
const JAVA: [&str; 4] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
    "/var/lib/ca-certificates/java-cacerts",
];
