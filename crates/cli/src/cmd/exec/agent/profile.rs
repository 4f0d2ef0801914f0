//! `peername agent profile`: the seccomp profile of containers that the agent supervises (OCI runtime specification 1.1,
//! config-linux.md, "Seccomp").

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use peername_exec::agent::DEFAULT_POLICY;
use serde_json::{Map, Value, json};

use super::values::{SOCKET, policy_name, socket_path};
use crate::check_report::report_missing;
use crate::publish::publish;

/// Options of `peername agent profile`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    asked: AskedAgent,
    /// Change this profile [default: that of podman]
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Write the profile to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Say what this profile lacks, and exit with 3 if it lacks something
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "output"])]
    check: Option<PathBuf>,
}

/// The agent that a profile has the kernel ask, and the policy that it names.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct AskedAgent {
    /// The policy of the containers: a name of the agent's configuration
    #[arg(long, value_name = "NAME", default_value = DEFAULT_POLICY, value_parser = policy_name)]
    pub(crate) policy: String,
    /// The agent's socket, as of `agent --listen`
    #[arg(long, alias = "listen", value_name = "PATH", default_value = SOCKET, value_parser = socket_path)]
    pub(crate) socket: PathBuf,
}

/// A seccomp profile, as JSON.
pub(crate) type Profile = Map<String, Value>;

impl AskedAgent {
    /// The policy and the socket that are given; else those that the profile names, or else the usual ones.
    pub(crate) fn given_or_of(
        profile: Option<&Profile>,
        policy: Option<&str>,
        socket: Option<&Path>,
    ) -> Self {
        let named = |key| Some(text_of(profile?, key)).filter(|text| !text.is_empty());
        let policy = policy.or_else(|| named("listenerMetadata"));
        let socket = socket.or_else(|| named("listenerPath").map(Path::new));
        Self {
            policy: policy.unwrap_or(DEFAULT_POLICY).to_owned(),
            socket: socket.map_or_else(|| SOCKET.into(), Path::to_owned),
        }
    }

    /// The profile in this file, or podman's default one, with the calls that the agent answers.
    ///
    /// # Errors
    ///
    /// The file can't be read, or is no seccomp profile.
    pub(crate) fn profile(&self, from: Option<&Path>) -> anyhow::Result<Profile> {
        let profile = match from {
            Some(path) => read(path)?,
            None => default_profile()?,
        };
        with_agent(profile, self)
    }
}

/// Prints the profile, or what another one lacks.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.check {
        let missing = missing(&read(path)?, &args.asked);
        return Ok(report_missing(path, &missing)?);
    }
    let profile = args.asked.profile(args.from.as_deref())?;
    let text = format!("{:#}\n", Value::from(profile));
    match &args.output {
        Some(path) => publish(path, text.as_bytes())?,
        None => stdout().write_all(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The default profile of podman, for containers with the usual capabilities.
fn default_profile() -> anyhow::Result<Profile> {
    let mut profile = object(include_str!("default_profile.json"))?;
    profile.insert("architectures".to_owned(), json!(ARCHITECTURES));
    Ok(profile)
}

/// Reads a profile.
///
/// # Errors
///
/// The file can't be read, or is no seccomp profile.
pub(crate) fn read(path: &Path) -> anyhow::Result<Profile> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    object(&text).with_context(|| format!("{}: no seccomp profile", path.display()))
}

fn object(text: &str) -> anyhow::Result<Profile> {
    match serde_json::from_str(text)? {
        Value::Object(object) => Ok(object),
        _ => bail!("no JSON object"),
    }
}

/// The profile with the calls that the agent answers, and nothing else changed.
fn with_agent(mut profile: Profile, asked: &AskedAgent) -> anyhow::Result<Profile> {
    let rules = profile.entry("syscalls").or_insert_with(|| json!([]));
    let rules = rules.as_array_mut().context("`syscalls` is no array")?;
    for rule in rules.iter_mut() {
        if let Some(names) = rule.get_mut("names").and_then(Value::as_array_mut) {
            names.retain(|name| !name.as_str().is_some_and(is_ours));
        }
    }
    // Rules of an older form have one `name`.
    rules.retain(|rule| match rule.get("name").and_then(Value::as_str) {
        Some(name) => !is_ours(name),
        None => !names_of(rule).is_empty(),
    });
    // libseccomp sees no argument of it but the first, and can't apply rules of several actions. Those after one without arguments
    // are left out.
    if actions_of(rules, "socket").iter().any(|one| !allows(one)) {
        rules.insert(0, denial(&[MULTIPLEXED], EPERM));
    }
    rules.push(json!({ "names": NOTIFIED, "action": NOTIFY }));
    rules.push(denial(&DENIED, ENOSYS));
    profile.insert("listenerPath".to_owned(), json!(asked.socket));
    profile.insert("listenerMetadata".to_owned(), json!(asked.policy));
    Ok(profile)
}

fn denial(names: &[&str], errno: i32) -> Value {
    json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno })
}

/// What a profile lacks, a line each.
pub(crate) fn missing(profile: &Profile, asked: &AskedAgent) -> Vec<String> {
    let mut lacks = Vec::new();
    let socket = text_of(profile, "listenerPath");
    if Path::new(socket) != asked.socket {
        lacks.push(format!(
            "listenerPath is {socket:?}, not the agent's socket {:?}: the agent is not asked",
            asked.socket
        ));
    }
    let policy = text_of(profile, "listenerMetadata");
    if policy != asked.policy {
        lacks.push(format!(
            "listenerMetadata is {policy:?}: the containers get another policy than {:?}",
            asked.policy
        ));
    }
    let rules = profile.get("syscalls").and_then(Value::as_array);
    let rules = rules.map_or(&[][..], Vec::as_slice);
    let default = text_of(profile, "defaultAction");
    for name in NOTIFIED {
        let actions = actions_of(rules, name);
        if actions.is_empty() && allows(default) || actions.iter().any(|action| allows(action)) {
            lacks.push(format!(
                "{name} is allowed: connections are accepted without their header being read"
            ));
        } else if actions != [NOTIFY] || is_conditional(rules, name) {
            lacks.push(format!(
                "{name} is not {NOTIFY} without conditions: the server can't listen or accept, or does so past the agent"
            ));
        }
    }
    for name in DENIED.into_iter().chain([MULTIPLEXED]) {
        let actions = actions_of(rules, name);
        let by_default = actions.is_empty() && allows(default) && name != MULTIPLEXED;
        if by_default || actions.iter().any(|action| allows(action)) {
            lacks.push(format!(
                "{name} is allowed: connections can be accepted past the filter"
            ));
        }
    }
    lacks
}

fn text_of<'p>(profile: &'p Profile, key: &str) -> &'p str {
    let value = profile.get(key).and_then(Value::as_str);
    value.unwrap_or_default()
}

fn actions_of<'r>(rules: &'r [Value], name: &str) -> Vec<&'r str> {
    rules_of(rules, name)
        .filter_map(|rule| rule.get("action")?.as_str())
        .collect()
}

/// The rules of a call.
fn rules_of<'r>(rules: &'r [Value], name: &str) -> impl Iterator<Item = &'r Value> {
    rules
        .iter()
        .filter(move |rule| names_of(rule).iter().any(|one| one.as_str() == Some(name)))
}

/// Whether a rule of this call has conditions: arguments, capabilities, architectures.
fn is_conditional(rules: &[Value], name: &str) -> bool {
    rules_of(rules, name)
        .flat_map(|rule| CONDITIONS.map(|key| rule.get(key)))
        .any(is_filled)
}

fn is_filled(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Array(all)) => !all.is_empty(),
        Some(Value::Object(all)) => !all.is_empty(),
        _ => false,
    }
}

fn names_of(rule: &Value) -> &[Value] {
    let names = rule.get("names").and_then(Value::as_array);
    names.map_or(&[], Vec::as_slice)
}

fn allows(action: &str) -> bool {
    matches!(action, "SCMP_ACT_ALLOW" | "SCMP_ACT_LOG")
}

fn is_ours(name: &str) -> bool {
    NOTIFIED.contains(&name) || DENIED.contains(&name) || name == MULTIPLEXED
}

/// The calls that the agent answers.
const NOTIFIED: [&str; 4] = ["accept", "accept4", "getpeername", "listen"];
/// A ring accepts past the filter.
const DENIED: [&str; 1] = ["io_uring_setup"];
/// The 32-bit call that multiplexes the socket calls. Without a rule of its own, libseccomp applies to it those of the calls.
const MULTIPLEXED: &str = "socketcall";
/// The keys of a rule that limit it.
const CONDITIONS: [&str; 3] = ["args", "includes", "excludes"];
const NOTIFY: &str = "SCMP_ACT_NOTIFY";
/// Also what runtimes have by default, and a rule like the default has no effect.
const ENOSYS: i32 = 38;
const EPERM: i32 = 1;
#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: [&str; 2] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: [&str; 1] = ["SCMP_ARCH_AARCH64"];

const EXAMPLE: &str = "\
Example: podman's default profile for containers of the policy mail
  peername agent profile --policy mail --output mail.json";
