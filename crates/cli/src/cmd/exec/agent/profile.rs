//! `peername agent profile`: the seccomp profile of containers that the agent supervises (OCI runtime specification 1.1,
//! config-linux.md, "Seccomp").

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use peername_daemon::usage::error_text::with_causes;
use peername_exec::agent::DEFAULT_POLICY;
use peername_sys::fs::text_file::explain_path;
use serde_json::{Map, Value, json};

use super::values::{SOCKET, policy_name, socket_path};
use crate::check_report::report_missing;
use crate::publish::publish;

/// Options of `peername agent profile`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    listener: SeccompListener,
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

/// The listener of a seccomp profile: the agent's socket (`listenerPath`), and the policy that the agent is told
/// (`listenerMetadata`).
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct SeccompListener {
    /// The policy of the containers: a name of the agent's configuration
    #[arg(long, value_name = "NAME", default_value = DEFAULT_POLICY, value_parser = policy_name)]
    pub(crate) policy: String,
    /// The agent's socket, as of `agent --listen`
    #[arg(long, alias = "listen", value_name = "PATH", default_value = SOCKET, value_parser = socket_path)]
    pub(crate) socket: PathBuf,
    /// Show the header's destination as the server's own address: the agent answers getsockname(2), too
    #[arg(long)]
    dst: bool,
}

/// A seccomp profile, as JSON.
pub(crate) type Profile = Map<String, Value>;

impl SeccompListener {
    /// The policy and the socket of the options; what is not given is as in the profile, or else the default.
    pub(crate) fn from_options_or_profile(
        policy: Option<&str>,
        socket: Option<&Path>,
        profile: Option<&Profile>,
    ) -> Self {
        let policy = policy.or_else(|| nonempty_field(profile?, "listenerMetadata"));
        let socket = socket.or_else(|| nonempty_field(profile?, "listenerPath").map(Path::new));
        Self {
            policy: policy.unwrap_or(DEFAULT_POLICY).to_owned(),
            socket: socket.map_or_else(|| SOCKET.into(), Path::to_owned),
            dst: false,
        }
    }

    /// The calls that the agent answers. Programs may call getsockname(2) often, so it is one of them only if needed.
    fn notified(&self) -> Vec<&'static str> {
        let mut names = NOTIFIED.to_vec();
        names.extend(self.dst.then_some(GETSOCKNAME));
        names
    }

    /// Whether the rules of this action for a call are replaced by those of [`with_listener`]. The profile may have been made with
    /// `--dst`.
    fn replaces(&self, action: &str, name: &str) -> bool {
        self.notified().contains(&name)
            || DENIED.contains(&name)
            || name == MULTIPLEXED
            || (name == GETSOCKNAME && action == NOTIFY)
    }

    /// The profile in this file, or podman's default one, with this listener and rules for the calls that the agent answers.
    pub(crate) fn profile(&self, from: Option<&Path>) -> anyhow::Result<Profile> {
        let profile = match from {
            Some(path) => read(path).context("--from")?,
            None => default_profile()?,
        };
        with_listener(profile, self)
    }
}

/// Prints or writes a profile; with `--check`, reports the faults of one.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.check {
        let profile = read(path).map_err(|error| {
            anyhow!(
                "--check {}; `peername agent profile --output FILE` writes one",
                with_causes(&error)
            )
        })?;
        let faults = faults(&profile, &args.listener);
        return Ok(report_missing(path, &faults)?);
    }
    let profile = args.listener.profile(args.from.as_deref())?;
    let text = format!("{:#}\n", Value::from(profile));
    match &args.output {
        Some(path) => publish(path, text.as_bytes()).context("--output")?,
        None => stdout().write_all(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The default profile of podman, for containers with the usual capabilities.
fn default_profile() -> anyhow::Result<Profile> {
    let mut profile = parse_object(include_str!("default_profile.json"))?;
    profile.insert("architectures".to_owned(), json!(ARCHITECTURES));
    Ok(profile)
}

/// Reads a profile.
pub(crate) fn read(path: &Path) -> anyhow::Result<Profile> {
    let text = fs::read_to_string(path)
        .map_err(|error| explain_path(path, error))
        .with_context(|| path.display().to_string())?;
    parse_object(&text).with_context(|| format!("{}: no seccomp profile", path.display()))
}

fn parse_object(text: &str) -> anyhow::Result<Profile> {
    match serde_json::from_str(text).context("not JSON")? {
        Value::Object(object) => Ok(object),
        _ => bail!("no JSON object"),
    }
}

/// Adds the listener to a profile, and replaces the rules for the calls that the agent answers and for those that would bypass
/// it.
fn with_listener(mut profile: Profile, listener: &SeccompListener) -> anyhow::Result<Profile> {
    let rules = profile.entry("syscalls").or_insert_with(|| json!([]));
    let rules = rules.as_array_mut().context("`syscalls` is no array")?;
    let removes_dst = !listener.dst && actions_for(rules, GETSOCKNAME).contains(&NOTIFY);
    for rule in rules.iter_mut() {
        let action = rule_action(rule).unwrap_or_default().to_owned();
        if let Some(names) = rule.get_mut("names").and_then(Value::as_array_mut) {
            names.retain(|name| {
                !name
                    .as_str()
                    .is_some_and(|name| listener.replaces(&action, name))
            });
        }
    }
    // Removes rules that have no name left, and rules of the older form whose only `name` is replaced.
    rules.retain(|rule| {
        let action = rule_action(rule).unwrap_or_default();
        call_names(rule).any(|name| !listener.replaces(action, name))
    });
    if removes_dst && actions_for(rules, GETSOCKNAME).is_empty() {
        rules.push(json!({ "names": [GETSOCKNAME], "action": "SCMP_ACT_ALLOW" }));
    }
    // libseccomp applies the rules of socket(2) to socketcall(2), too. It sees only the first argument of that call, so it
    // can't apply rules of several actions. But it leaves out all rules after one without arguments, so such a rule comes
    // first.
    if actions_for(rules, "socket")
        .iter()
        .any(|action| !allows(action))
    {
        rules.insert(0, deny_rule(&[MULTIPLEXED], EPERM));
    }
    rules.push(json!({ "names": listener.notified(), "action": NOTIFY }));
    rules.push(deny_rule(&DENIED, ENOSYS));
    profile.insert("listenerPath".to_owned(), json!(listener.socket));
    profile.insert("listenerMetadata".to_owned(), json!(listener.policy));
    Ok(profile)
}

fn deny_rule(names: &[&str], errno: i32) -> Value {
    json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno })
}

/// Lists the faults of a profile that keep the agent from answering its containers' calls, a line each.
pub(crate) fn faults(profile: &Profile, listener: &SeccompListener) -> Vec<String> {
    let mut faults = Vec::new();
    let socket = string_field(profile, "listenerPath");
    if Path::new(socket) != listener.socket {
        faults.push(format!(
            "listenerPath is {socket:?}, not the agent's socket {:?}: the agent is not asked (another socket: give --socket here, too)",
            listener.socket
        ));
    }
    let policy = string_field(profile, "listenerMetadata");
    if policy != listener.policy {
        faults.push(format!(
            "listenerMetadata is {policy:?}: the containers get another policy than {:?}",
            listener.policy
        ));
    }
    let rules = profile
        .get("syscalls")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let default = string_field(profile, "defaultAction");
    for name in NOTIFIED {
        if is_allowed(&actions_for(rules, name), default) {
            faults.push(format!(
                "{name} is allowed: connections are accepted without their header being read"
            ));
        } else if !is_notified(rules, name) {
            faults.push(format!(
                "{name} is not {NOTIFY} without conditions: the server can't listen or accept, or does so past the agent"
            ));
        }
    }
    if listener.dst && !is_notified(rules, GETSOCKNAME) {
        faults.push(format!(
            "{GETSOCKNAME} is not {NOTIFY} without conditions: the server's own address is not the header's destination (--dst)"
        ));
    }
    for name in DENIED.into_iter().chain([MULTIPLEXED]) {
        // Without a rule of its own, the multiplexed call has the rules of the socket calls, not the default action.
        let default = if name == MULTIPLEXED { "" } else { default };
        if is_allowed(&actions_for(rules, name), default) {
            faults.push(format!(
                "{name} is allowed: connections can be accepted past the filter"
            ));
        }
    }
    faults
}

fn nonempty_field<'p>(profile: &'p Profile, key: &str) -> Option<&'p str> {
    Some(string_field(profile, key)).filter(|text| !text.is_empty())
}

fn string_field<'p>(profile: &'p Profile, key: &str) -> &'p str {
    profile.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Whether a call is allowed by one of its rules' actions, or by the default action if it has no rule.
fn is_allowed(actions: &[&str], default: &str) -> bool {
    match actions {
        [] => allows(default),
        actions => actions.iter().any(|action| allows(action)),
    }
}

/// Whether the agent answers a call, whatever its arguments.
fn is_notified(rules: &[Value], name: &str) -> bool {
    actions_for(rules, name) == [NOTIFY] && !is_conditional(rules, name)
}

fn actions_for<'r>(rules: &'r [Value], name: &str) -> Vec<&'r str> {
    rules_for(rules, name).filter_map(rule_action).collect()
}

fn rule_action(rule: &Value) -> Option<&str> {
    rule.get("action")?.as_str()
}

/// The rules that name a call.
fn rules_for<'r>(rules: &'r [Value], name: &str) -> impl Iterator<Item = &'r Value> {
    rules
        .iter()
        .filter(move |rule| call_names(rule).any(|call| call == name))
}

/// Whether a rule of this call has conditions: arguments, capabilities, architectures.
fn is_conditional(rules: &[Value], name: &str) -> bool {
    rules_for(rules, name)
        .flat_map(|rule| CONDITIONS.map(|key| rule.get(key)))
        .any(is_filled)
}

fn is_filled(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Array(values)) => !values.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        _ => false,
    }
}

/// The calls of a rule: its `names`, or the one `name` of the older form.
fn call_names(rule: &Value) -> impl Iterator<Item = &str> {
    let names = rule.get("names").and_then(Value::as_array);
    names
        .into_iter()
        .flatten()
        .chain(rule.get("name"))
        .filter_map(Value::as_str)
}

fn allows(action: &str) -> bool {
    matches!(action, "SCMP_ACT_ALLOW" | "SCMP_ACT_LOG")
}

/// The calls that the agent answers in every container.
const NOTIFIED: [&str; 4] = ["accept", "accept4", "getpeername", "listen"];
/// The call that the agent answers with `--dst`.
const GETSOCKNAME: &str = "getsockname";
/// The calls that are denied: io_uring accepts connections past the filter.
const DENIED: [&str; 1] = ["io_uring_setup"];
/// The 32-bit call that multiplexes the socket calls. If it has no rule of its own, libseccomp applies the rules of the socket
/// calls.
const MULTIPLEXED: &str = "socketcall";
/// The keys of a rule's conditions.
const CONDITIONS: [&str; 3] = ["args", "includes", "excludes"];
const NOTIFY: &str = "SCMP_ACT_NOTIFY";
/// Also the error of the runtimes' default action. A rule that equals the default action has no effect.
const ENOSYS: i32 = 38;
const EPERM: i32 = 1;
#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: [&str; 2] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: [&str; 1] = ["SCMP_ARCH_AARCH64"];

const EXAMPLE: &str = "\
Example: podman's default profile for containers of the policy mail
  peername agent profile --policy mail --output mail.json";

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(dst: bool) -> SeccompListener {
        SeccompListener {
            socket: "/run/agent.sock".into(),
            policy: "default".to_owned(),
            dst,
        }
    }

    /// libseccomp would apply the older rule beside the one that notifies the agent.
    #[test]
    fn rule_of_the_older_form_is_replaced_and_is_a_fault() {
        let without_dst = listener(false);
        let rule = |name| json!({ "name": name, "action": "SCMP_ACT_ALLOW" });
        let mut profile = Profile::new();
        profile.insert(
            "syscalls".to_owned(),
            json!([rule("read"), rule("accept4")]),
        );
        let mut replaced = with_listener(profile, &without_dst).unwrap();
        assert_eq!(replaced["syscalls"][0], rule("read"));
        assert_eq!(faults(&replaced, &without_dst), Vec::<String>::new());
        replaced["syscalls"]
            .as_array_mut()
            .unwrap()
            .push(rule("accept4"));
        assert_eq!(faults(&replaced, &without_dst).len(), 1);
        assert_eq!(faults(&replaced, &listener(true)).len(), 2);
    }

    #[test]
    fn profile_that_was_made_with_dst_is_changed_to_one_without() {
        let with_dst = with_listener(Profile::new(), &listener(true)).unwrap();
        assert_eq!(faults(&with_dst, &listener(true)), Vec::<String>::new());
        let without = with_listener(with_dst, &listener(false)).unwrap();
        let rules = without["syscalls"].as_array().unwrap();
        assert_eq!(actions_for(rules, GETSOCKNAME), ["SCMP_ACT_ALLOW"]);
        let again = with_listener(without, &listener(true)).unwrap();
        assert_eq!(faults(&again, &listener(true)), Vec::<String>::new());
    }

    #[test]
    fn conditional_rule_for_getsockname_is_a_fault() {
        let mut profile = with_listener(Profile::new(), &listener(true)).unwrap();
        for rule in profile["syscalls"].as_array_mut().unwrap() {
            if rule_action(rule) == Some(NOTIFY) {
                rule["names"] = json!(NOTIFIED);
            }
        }
        let conditional = json!({
            "names": [GETSOCKNAME], "action": NOTIFY, "args": [{ "index": 0, "value": 3, "op": "SCMP_CMP_EQ" }]
        });
        profile["syscalls"]
            .as_array_mut()
            .unwrap()
            .push(conditional);
        assert_eq!(faults(&profile, &listener(true)).len(), 1);
    }
}
