//! The environment of the program.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use peername_jail::files::{Covered, PrivateDir};
use peername_sys::fs::text_file;

use crate::cmd::ca::trust_store::{BUNDLE_VARIABLES, EXTRA_CA_VARIABLES, java_options};

/// Sets the variables by which programs trust the interceptor, and removes those by which they would connect to something else
/// than the destination itself.
pub(super) fn prepare(
    command: &mut Command,
    dir: &PrivateDir,
    covered: &Covered,
) -> anyhow::Result<()> {
    for name in BUNDLE_VARIABLES {
        command.env(name, dir.bundle());
    }
    for name in EXTRA_CA_VARIABLES {
        command.env(name, dir.certificates());
    }
    // Only where no keystore could be covered: with the variable, each Java process writes a line to standard error.
    if !covered.has_java_keystore {
        command.env("JAVA_TOOL_OPTIONS", java_tool_options(&dir.truststore())?);
    }
    for name in PROXY_VARIABLES {
        command
            .env_remove(name)
            .env_remove(name.to_ascii_uppercase());
    }
    for (name, value) in PROXY_OVERRIDES {
        command.env(name, value);
    }
    if is_pip_proxy_configured() {
        command.env("PIP_PROXY", PIP_PROXY);
    } else {
        command.env_remove("PIP_PROXY");
    }
    disable_git_proxy(command);
    for name in RESOLVER_VARIABLES {
        command.env_remove(name);
    }
    Ok(())
}

/// The variable by which the program would find a proxy, if there is one. The interceptor does not use it: it may be for another
/// network than the jail's, and `no_proxy` has rules of its own in each program.
pub(super) fn ignored_proxy() -> Option<String> {
    ["https_proxy", "http_proxy", "all_proxy"]
        .into_iter()
        .flat_map(|name| [name.to_owned(), name.to_ascii_uppercase()])
        .find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Whether a configuration file of pip names a proxy. Only then is the proxy overridden, because the override has pip ask the
/// interceptor even for servers in the jail, which the interceptor does not reach.
fn is_pip_proxy_configured() -> bool {
    let below = |variable: &str, path: &str| Some(Path::new(&env::var_os(variable)?).join(path));
    let files = [
        env::var_os("PIP_CONFIG_FILE").map(PathBuf::from),
        below("VIRTUAL_ENV", "pip.conf"),
        below("XDG_CONFIG_HOME", "pip/pip.conf"),
        below("HOME", ".config/pip/pip.conf"),
        below("HOME", ".pip/pip.conf"),
        Some("/etc/xdg/pip/pip.conf".into()),
        Some("/etc/pip.conf".into()),
    ];
    files
        .into_iter()
        .flatten()
        .filter_map(|file| text_file::read(&file).ok())
        .any(|text| {
            text.to_ascii_lowercase()
                .lines()
                .any(|line| line.trim_start().starts_with("proxy"))
        })
}

/// Overrides `http.proxy` of git's configuration files, by an entry after those that the environment has already. Settings of
/// the files for one URL or remote (`http.<url>.proxy`, `remote.<name>.proxy`) are more specific, and stay in force.
fn disable_git_proxy(command: &mut Command) {
    let count = env::var("GIT_CONFIG_COUNT").unwrap_or_default();
    let count: u32 = count.parse().unwrap_or_default();
    command
        .env(format!("GIT_CONFIG_KEY_{count}"), "http.proxy")
        .env(format!("GIT_CONFIG_VALUE_{count}"), "")
        .env("GIT_CONFIG_COUNT", count.saturating_add(1).to_string());
}

fn java_tool_options(keystore: &Path) -> anyhow::Result<String> {
    let options = java_options(keystore.to_str().context("TMPDIR is not UTF-8")?);
    Ok(match env::var("JAVA_TOOL_OPTIONS") {
        Ok(inherited) if !inherited.is_empty() => format!("{inherited} {options}"),
        _ => options,
    })
}

/// Proxies that the jail does not reach, and does not need.
const PROXY_VARIABLES: [&str; 7] = [
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "grpc_proxy",
    "no_grpc_proxy",
];
/// Override the proxies in the configuration files of npm and cargo.
const PROXY_OVERRIDES: [(&str, &str); 3] = [
    ("npm_config_proxy", "false"),
    ("npm_config_https_proxy", "false"),
    ("CARGO_HTTP_PROXY", ""),
];
/// pip ignores an empty value, so it gets a name that the interceptor answers.
const PIP_PROXY: &str = "http://interceptor.invalid:80";
/// Variables with search lists and aliases of names (resolv.conf(5), hostname(7)). Every name resolves in the jail, so a
/// resolver would take the first completed name that it tries.
const RESOLVER_VARIABLES: [&str; 3] = ["LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES"];
