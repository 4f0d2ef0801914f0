//! Policies in Rego that are evaluated in this process (`rego:FILE`, `rego:DIR`).
//!
//! Input and result are those of OPA's data API, so that one policy serves here and in OPA: the input is made, and the result
//! decoded, by the same code. Evaluation takes CPU time and nothing else, so it runs on threads for blocking work, as many at a
//! time as there are CPUs, and ends at the deadline of the check.

mod bounded;
mod source;

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Formatter};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::thread::available_parallelism;

use http::StatusCode;
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, PolicyLengthConfig, Value};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::opa;
use crate::authz::config::error::ConfigError;
use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::request::AuthzRequest;
use crate::authz::response::AuthzResponse;
use crate::authz::verdict::AuthzError;
use crate::http_client::MAX_RESPONSE;
use crate::http_client::error::printable;
pub(crate) use source::PolicyPath;
use source::{Source, located};

/// A policy that is ready to be evaluated.
pub(crate) struct Policy {
    /// Its files and its rule, for comparisons.
    source: Source,
    rule: String,
    /// Cloned for each evaluation, which shares what is compiled.
    engine: Engine,
    /// Permits for evaluations.
    permits: Arc<Semaphore>,
}

impl Policy {
    /// Reads and compiles a policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Policy`].
    pub(crate) fn read(path: &PolicyPath) -> Result<Self, ConfigError> {
        Self::new(Source::read(path.path())?, path.rule.as_deref())
    }

    /// Compiles a policy. `rule` is a path as in OPA's data API: `egress/verdict`, or `egress` for the whole package, which is the
    /// default if there is only one.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Policy`], with file and line: the policy is not valid, or has no such package.
    fn new(source: Source, rule: Option<&str>) -> Result<Self, ConfigError> {
        let refuse = |error: anyhow::Error| ConfigError::Policy(located(&error));
        let mut engine = Engine::new();
        engine.set_policy_length_config(PolicyLengthConfig {
            max_col: NonZeroU32::MAX,
            max_file_bytes: MAX_FILE,
            max_lines: MAX_FILE,
        });
        // As OPA does: the result of a built-in function that fails is undefined.
        engine.set_strict_builtin_errors(false);
        // The library counts the UTF-16 units of a string, OPA its characters.
        let count = |args: Vec<Value>| Ok(count(&args));
        engine
            .add_extension("count".to_owned(), 1, Box::new(count))
            .map_err(refuse)?;
        bounded::replace_builtins(&mut engine).map_err(refuse)?;
        // Or they would go to standard error.
        engine.set_gather_prints(true);
        for (path, text) in &source.modules {
            let name = path.display().to_string();
            engine.add_policy(name, text.clone()).map_err(refuse)?;
        }
        for data in source.data_documents() {
            engine.add_data(data.into()).map_err(refuse)?;
        }
        let packages = engine.get_packages().map_err(refuse)?;
        let named = rule;
        let rule = query(rule, &packages)?;
        // Compiles everything, and evaluates nothing of it.
        engine
            .eval_query("true".to_owned(), false)
            .map_err(refuse)?;
        engine.set_input(Value::new_object());
        if let Err(error) = engine.clone().eval_query(rule.clone(), false)
            && is_unknown_function(&error)
        {
            return Err(refuse(error));
        }
        if let Some(named) = named
            && !is_defined(&engine, &rule, &packages)
        {
            return Err(unknown_rule(named, &packages));
        }
        let cpus = available_parallelism().map_or(1, Into::into);
        Ok(Self {
            source,
            rule,
            engine,
            permits: Arc::new(Semaphore::new(cpus)),
        })
    }

    /// Evaluates the policy.
    ///
    /// # Errors
    ///
    /// [`AuthzError::Timeout`] if it takes too long, [`AuthzError::Status`] for an error of the policy,
    /// [`AuthzError::TooLong`] for a result that is longer than a service's response may be.
    pub(crate) async fn decide(
        &self,
        request: &AuthzRequest<'_>,
        sent: &SentHeaders,
        deadline: Instant,
    ) -> Result<AuthzResponse, AuthzError> {
        let input = Value::from(opa::input(request, sent));
        let started = Instant::now();
        let closed = |_| AuthzError::Malformed("the policy's permits are closed");
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let (mut engine, rule) = (self.engine.clone(), self.rule.clone());
        let limit = deadline.saturating_duration_since(Instant::now());
        engine.set_execution_timer_config(ExecutionTimerConfig {
            limit,
            check_interval: TIMER_INTERVAL,
        });
        let evaluated = spawn_blocking(move || {
            engine.set_input(input);
            let result = evaluate(&mut engine, rule);
            drop(permit);
            result
        });
        let result = evaluated.await;
        let result =
            result.map_err(|_| AuthzError::Malformed("the policy's evaluation was aborted"))?;
        let reply = result.map_err(|error| match error.downcast_ref::<LimitError>() {
            Some(LimitError::TimeLimitExceeded { .. }) => AuthzError::Timeout(started.elapsed()),
            _ => AuthzError::Status(printable(&located(&error))),
        })?;
        match reply {
            // It may be misspelt.
            None => Ok(opa::denied(&format!("{} is undefined", self.rule))),
            Some(reply) if reply.len() <= MAX_RESPONSE => {
                opa::decode(StatusCode::OK, reply.as_bytes())
            }
            Some(_) => Err(AuthzError::TooLong(MAX_RESPONSE)),
        }
    }
}

/// The response that OPA's data API would have; `None` if the result is undefined.
fn evaluate(engine: &mut Engine, rule: String) -> anyhow::Result<Option<String>> {
    let results = engine.eval_query(rule, false)?.result;
    let expressions = results.into_iter().next().map(|result| result.expressions);
    let value = expressions
        .and_then(|all| all.into_iter().next())
        .map(|one| one.value);
    Ok(match value {
        None | Some(Value::Undefined) => None,
        Some(value) => Some(format!("{{\"result\":{}}}", value.to_json_str()?)),
    })
}

/// OPA's built-in function `count`.
fn count(args: &[Value]) -> Value {
    let count = match args {
        [Value::Array(all)] => all.len(),
        [Value::Set(all)] => all.len(),
        [Value::Object(all)] => all.len(),
        [Value::String(text)] => text.chars().count(),
        _ => return Value::Undefined,
    };
    Value::from(count)
}

/// The query for a rule.
fn query(rule: Option<&str>, packages: &[String]) -> Result<String, ConfigError> {
    match rule {
        None => match unique(packages).as_slice() {
            [only] => Ok((*only).to_owned()),
            several => Err(ConfigError::Policy(format!(
                "it has several packages ({}): name a rule or package of one, as in rego:PATH#egress/verdict",
                several.join(", ")
            ))),
        },
        Some(rule) => {
            let path = rule.split('/').map(component).collect::<Option<String>>();
            let query = path.map(|path| format!("data{path}"));
            let is_in = |query: &String| {
                let mut all = packages.iter();
                all.any(|package| is_at_or_below(query, package) || is_at_or_below(package, query))
            };
            query
                .filter(is_in)
                .ok_or_else(|| unknown_rule(rule, packages))
        }
    }
}

fn unknown_rule(rule: &str, packages: &[String]) -> ConfigError {
    let known = unique(packages).join(", ");
    ConfigError::Policy(format!(
        "no package has the rule {rule:?}; there is {known}"
    ))
}

fn unique(packages: &[String]) -> Vec<&str> {
    let unique: BTreeSet<_> = packages.iter().map(String::as_str).collect();
    unique.into_iter().collect()
}

/// Whether a query is for a package or a group of packages, for a rule or a part of its value, or for data. A rule that is
/// misspelt would be undefined for every request.
fn is_defined(engine: &Engine, query: &str, packages: &[String]) -> bool {
    if packages
        .iter()
        .any(|package| is_at_or_below(package, query))
    {
        return true;
    }
    let mut rule = query;
    loop {
        if packages.iter().any(|package| package == rule) {
            break;
        }
        match engine.clone().eval_rule(rule.to_owned()) {
            Err(error) if is_no_rule(&error) => {}
            _ => return true,
        }
        match rule.rsplit_once('.') {
            Some((parent, _)) => rule = parent,
            None => break,
        }
    }
    evaluate(&mut engine.clone(), query.to_owned()).is_ok_and(|value| value.is_some())
}

/// Whether a path is this one, or one below it.
fn is_at_or_below(path: &str, other: &str) -> bool {
    let rest = path.strip_prefix(other);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A component of a rule's path: an identifier.
fn component(text: &str) -> Option<String> {
    let is_identifier = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    (text.starts_with(is_first) && text.chars().all(is_identifier)).then(|| format!(".{text}"))
}

/// Whether a policy calls a function that this build lacks, which no input can change.
fn is_unknown_function(error: &anyhow::Error) -> bool {
    error.to_string().contains("could not find function")
}

/// Whether a path names no rule.
fn is_no_rule(error: &anyhow::Error) -> bool {
    error.to_string() == "not a valid rule path"
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        (&self.source, &self.rule) == (&other.source, &other.rule)
    }
}

impl Debug for Policy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

/// Steps of an evaluation between two reads of the clock: some tens of microseconds.
const TIMER_INTERVAL: NonZeroU32 = NonZeroU32::new(64).expect("not zero");
/// The maximum number of bytes, and so of lines, of a file.
const MAX_FILE: NonZeroUsize = NonZeroUsize::new(4 << 20).expect("not zero");
