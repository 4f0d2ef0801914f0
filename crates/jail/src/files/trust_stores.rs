//! Where distributions and Java keep the authorities that programs trust.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;

/// Finds the bundles of this host (PEM): the files that the well-known names lead to.
pub(super) fn bundles() -> BTreeSet<PathBuf> {
    existing(BUNDLES.iter().map(PathBuf::from))
}

/// Finds the keystores of this host: those that distributions make, and those of each Java.
pub(super) fn java() -> BTreeSet<PathBuf> {
    let in_homes = java_homes()
        .into_iter()
        .flat_map(|home| JAVA_HOME_KEYSTORES.map(|keystore| home.join(keystore)));
    existing(SYSTEM_KEYSTORES.iter().map(PathBuf::from).chain(in_homes))
}

/// Finds the home directory of each Java: installed by the system or the user, set by `JAVA_HOME`, or on the search path.
fn java_homes() -> Vec<PathBuf> {
    let mut parents = vec![PathBuf::from("/usr/lib/jvm")];
    if let Some(home) = env::var_os("HOME").map(PathBuf::from) {
        parents.extend(USER_JAVA_DIRS.map(|dir| home.join(dir)));
    }
    parents
        .into_iter()
        .flat_map(|parent| fs::read_dir(parent).into_iter().flatten())
        .filter_map(|entry| Some(entry.ok()?.path()))
        .chain(env::var_os("JAVA_HOME").map(PathBuf::from))
        .chain(java_on_path())
        .collect()
}

/// The home of the Java that is on the search path: the parent of its `bin`.
fn java_on_path() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let java = env::split_paths(&path).find_map(|dir| dir.join("java").canonicalize().ok())?;
    Some(java.parent()?.parent()?.to_owned())
}

fn existing(paths: impl Iterator<Item = PathBuf>) -> BTreeSet<PathBuf> {
    paths
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| path.is_file())
        .collect()
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
const USER_JAVA_DIRS: [&str; 5] = [
    ".sdkman/candidates/java",
    ".jdks",
    ".gradle/jdks",
    ".asdf/installs/java",
    ".local/share/mise/installs/java",
];
/// The keystore of a Java, below its home directory: since Java 9, and before.
const JAVA_HOME_KEYSTORES: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];
/// The keystores that distributions make: Debian; Fedora, twice; SUSE.
const SYSTEM_KEYSTORES: [&str; 4] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
    "/var/lib/ca-certificates/java-cacerts",
];
