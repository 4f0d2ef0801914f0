//! Policies in Rego that are evaluated in this process (`rego:FILE`, `rego:DIR`).
//!
//! Input and result are those of OPA's data API, by the same code, so that a policy serves both here and in OPA. Evaluation
//! takes only CPU time: it runs on threads for blocking work, at most one evaluation per CPU, and ends at the deadline of the
//! check.

mod bounded;
mod source;

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Formatter};
use std::num::{NonZeroU32, NonZeroUsize};
use std::thread::available_parallelism;

use http::StatusCode;
use peername_observe::escape::printable;
use peername_server::access::client_semaphore::FairSemaphore;
use peername_server::threads::spawn_request_call;
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, PolicyLengthConfig, Value};
use tokio::time::Instant;

use super::opa;
use crate::authz::config::error::ConfigError;
use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::request::AuthzRequest;
use crate::authz::response::AuthzResponse;
use crate::authz::verdict::AuthzError;
use crate::http_client::MAX_RESPONSE;
pub(crate) use source::PolicyPath;
use source::{Source, format_error};

/// A policy that is ready to be evaluated.
pub(crate) struct Policy {
    source: Source,
    /// The query for the rule.
    query: String,
    /// Cloned for each evaluation. The clones share the compiled policy.
    engine: Engine,
    /// Limits concurrent evaluations.
    permits: FairSemaphore,
}

impl Policy {
    /// Reads and compiles a policy.
    pub(crate) fn read(path: &PolicyPath) -> Result<Self, ConfigError> {
        Self::new(Source::read(path.path())?, path.rule.as_deref())
    }

    /// Compiles a policy. `rule` is a path as in OPA's data API: `egress/verdict`, or `egress` for a whole package. Without
    /// `rule`, the query is for the policy's only package.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Policy`], with file and line: the policy is not valid, or has no such rule or package.
    fn new(source: Source, rule: Option<&str>) -> Result<Self, ConfigError> {
        let refuse = |error: anyhow::Error| ConfigError::Policy(format_error(&error));
        let mut engine = new_engine().map_err(refuse)?;
        for (path, text) in &source.modules {
            let name = path.display().to_string();
            engine.add_policy(name, text.clone()).map_err(refuse)?;
        }
        for data in source.data_documents() {
            engine.add_data(data.into()).map_err(refuse)?;
        }
        let packages = engine.get_packages().map_err(refuse)?;
        let query = query(rule, &packages)?;
        // Compiles the whole policy without evaluating a rule.
        engine
            .eval_query("true".to_owned(), false)
            .map_err(refuse)?;
        engine.set_input(Value::new_object());
        // With an empty input other errors are expected, but no input makes up for a missing function.
        if let Err(error) = engine.clone().eval_query(query.clone(), false)
            && is_unknown_function(&error)
        {
            return Err(refuse(error));
        }
        if let Some(rule) = rule
            && !is_defined(&engine, &query, &packages)
        {
            return Err(unknown_rule(rule, &packages));
        }
        if packages.contains(&query)
            && !["allow", "allowed"]
                .iter()
                .any(|name| is_defined(&engine, &format!("{query}.{name}"), &packages))
        {
            let path = query.trim_start_matches("data.").replace('.', "/");
            return Err(ConfigError::Policy(format!(
                "{query} has no rule `allow`, so it would deny every request; name another rule: rego:PATH#{path}/RULE"
            )));
        }
        let cpus = available_parallelism().map_or(1, Into::into);
        Ok(Self {
            source,
            query,
            engine,
            permits: FairSemaphore::new(cpus),
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
        let permit = self.permits.acquire(request.client.ip()).await;
        let (mut engine, query) = (self.engine.clone(), self.query.clone());
        let limit = deadline.saturating_duration_since(Instant::now());
        engine.set_execution_timer_config(ExecutionTimerConfig {
            limit,
            check_interval: TIMER_INTERVAL,
        });
        let result = spawn_request_call(move || {
            engine.set_input(input);
            let result = evaluate(&mut engine, query);
            drop(permit);
            result
        })
        .await
        .map_err(|_| AuthzError::Malformed("the policy's evaluation was aborted"))?;
        let reply = result.map_err(|error| match error.downcast_ref::<LimitError>() {
            Some(LimitError::TimeLimitExceeded { .. }) => AuthzError::Timeout(started.elapsed()),
            _ => AuthzError::Status(printable(&format_error(&error))),
        })?;
        match reply {
            // The reason names the query, which may be misspelt.
            None => Ok(opa::denied(&format!("{} is undefined", self.query))),
            Some(reply) if reply.len() <= MAX_RESPONSE => {
                opa::decode(StatusCode::OK, reply.as_bytes(), &self.query)
            }
            Some(_) => Err(AuthzError::TooLong(MAX_RESPONSE)),
        }
    }
}

/// Creates an engine that evaluates policies as OPA does, and whose built-in functions are bounded.
fn new_engine() -> anyhow::Result<Engine> {
    let mut engine = Engine::new();
    engine.set_policy_length_config(PolicyLengthConfig {
        max_col: NonZeroU32::MAX,
        max_file_bytes: MAX_FILE,
        max_lines: MAX_FILE,
    });
    // In OPA the result of a built-in function that fails is undefined.
    engine.set_strict_builtin_errors(false);
    // The library counts the UTF-16 units of a string, OPA its characters.
    engine.add_extension(
        "count".to_owned(),
        1,
        Box::new(|args: Vec<Value>| Ok(count(&args))),
    )?;
    bounded::replace_builtins(&mut engine)?;
    // Without this, `print` in a policy would write to standard error.
    engine.set_gather_prints(true);
    Ok(engine)
}

/// Evaluates a query. Returns the response that OPA's data API would have; `None` if the result is undefined.
fn evaluate(engine: &mut Engine, query: String) -> anyhow::Result<Option<String>> {
    let value = engine
        .eval_query(query, false)?
        .result
        .into_iter()
        .next()
        .and_then(|result| result.expressions.into_iter().next())
        .map(|expression| expression.value);
    Ok(match value {
        None | Some(Value::Undefined) => None,
        Some(value) => Some(format!("{{\"result\":{}}}", value.to_json_str()?)),
    })
}

/// OPA's built-in function `count`.
fn count(args: &[Value]) -> Value {
    let count = match args {
        [Value::Array(elements)] => elements.len(),
        [Value::Set(elements)] => elements.len(),
        [Value::Object(members)] => members.len(),
        [Value::String(text)] => text.chars().count(),
        _ => return Value::Undefined,
    };
    Value::from(count)
}

/// The query for a rule.
fn query(rule: Option<&str>, packages: &[String]) -> Result<String, ConfigError> {
    match rule {
        None => match sorted_unique(packages).as_slice() {
            [only] => Ok((*only).to_owned()),
            several => Err(ConfigError::Policy(format!(
                "it has several packages ({}): name a rule or package of one, as in rego:PATH#egress/verdict",
                several.join(", ")
            ))),
        },
        Some(rule) => {
            let query = format!("data.{}", rule.replace('/', "."));
            let is_known = packages
                .iter()
                .any(|package| is_at_or_below(&query, package) || is_at_or_below(package, &query));
            if is_known && rule.split('/').all(is_identifier) {
                Ok(query)
            } else {
                Err(unknown_rule(rule, packages))
            }
        }
    }
}

fn unknown_rule(rule: &str, packages: &[String]) -> ConfigError {
    let known = sorted_unique(packages).join(", ");
    let hint = if rule.contains('.') {
        let path = rule.trim_start_matches("data.").replace('.', "/");
        format!(" (write slashes: #{path})")
    } else {
        String::new()
    };
    ConfigError::Policy(format!(
        "no package has the rule {rule:?}{hint}; there is {known}"
    ))
}

/// The names of the packages, each once: a package of several files is listed several times.
fn sorted_unique(packages: &[String]) -> Vec<&str> {
    let unique: BTreeSet<_> = packages.iter().map(String::as_str).collect();
    unique.into_iter().collect()
}

/// Whether a query can have a value: it is for a package or a group of packages, for a rule or a part of its value, or for data.
/// A misspelt rule would be undefined for every request.
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

fn is_at_or_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether the error is that a policy calls a function which this build lacks.
fn is_unknown_function(error: &anyhow::Error) -> bool {
    error.to_string().contains("could not find function")
}

/// Whether the error is that a path names no rule.
fn is_no_rule(error: &anyhow::Error) -> bool {
    error.to_string() == "not a valid rule path"
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        (&self.source, &self.query) == (&other.source, &other.query)
    }
}

impl Debug for Policy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("query", &self.query)
            .finish_non_exhaustive()
    }
}

/// Steps of an evaluation between two reads of the clock: some tens of microseconds.
const TIMER_INTERVAL: NonZeroU32 = NonZeroU32::new(64).expect("not zero");
/// The maximum number of bytes of a file, and so also of its lines.
const MAX_FILE: NonZeroUsize = NonZeroUsize::new(4 << 20).expect("not zero");
