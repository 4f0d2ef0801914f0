//! docs/logs.md and the pages that it refers to name all that the code logs. The page's table of outcomes has nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use peername_exec::notify::reasons::{Class, classify};
use peername_identity::Counter;
use peername_intercept::admin::code_advice::advise;

const PAGE: &str = include_str!("../../../docs/logs.md");
const INTERCEPT_PAGE: &str = include_str!("../../../docs/intercept.md");
const CHECK_PAGE: &str = include_str!("../../../docs/check.md");
const UDP_PAGE: &str = include_str!("../../../docs/udp.md");
const ADMIN_PAGE: &str = include_str!("../../../docs/admin.md");
const OUTCOME: &str = include_str!("../../../crates/proxy/src/outcome.rs");
const ADVICE: &str = include_str!("../../../crates/intercept/src/admin/code_advice.rs");
const AUDIT_LINE: &str = include_str!("../../../crates/intercept/src/audit/record.rs");
const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The text in backticks.
fn quoted(page: &str) -> BTreeSet<&str> {
    page.split('`').skip(1).step_by(2).collect()
}

/// The labels of `match` arms: `… => "text",`.
fn labels(source: &str) -> BTreeSet<&str> {
    source
        .split("=> \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|text| {
            text.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        })
        .collect()
}

/// The names of an event's fields, between the first occurrence of `call` and the end of the call.
fn fields<'s>(source: &'s str, call: &str) -> BTreeSet<&'s str> {
    let (_, rest) = source.split_once(call).expect(call);
    let (event, _) = rest.split_once(");").expect("its end");
    event
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| !name.contains(|c: char| !c.is_ascii_lowercase() && c != '_'))
        .collect()
}

#[test]
fn page_lists_exactly_the_outcomes() {
    let (source_refusals, _) = include_str!("../../../crates/proto/src/source_policy.rs")
        .split_once("impl SourcePolicy {")
        .expect("the names of policies, which are no outcomes");
    let (outcomes, rest) = split_at_evictions();
    let (_, faults) = rest.split_once("impl Fault {").expect("the faults");
    let sources = [
        outcomes,
        faults,
        source_refusals,
        include_str!("../../../crates/proxy/src/policy/destination.rs"),
        include_str!("../../../crates/server/src/access/clients/refusal.rs"),
        include_str!("../../../crates/server/src/header_error.rs"),
        include_str!("../../../crates/proto/src/invalid.rs"),
        include_str!("../../../crates/proto/src/header_policy.rs"),
    ];
    let written: BTreeSet<_> = sources.into_iter().flat_map(labels).collect();
    assert!(written.len() > 60, "{written:?}");
    let documented = quoted(PAGE);
    let missing: Vec<_> = written.difference(&documented).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let (_, outcomes) = PAGE.split_once("### Outcomes").expect("the section");
    let (outcomes, _) = outcomes
        .split_once("Datagrams are dropped")
        .expect("its end");
    let rows = outcomes
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    for name in rows
        .flat_map(|row| row.split('`'))
        .filter(|name| !["", ", "].contains(name))
    {
        assert!(written.contains(name), "{name} is no outcome");
    }
}

/// The source of outcomes before and after the beginning of the reasons for evictions, which are labels of a metric.
fn split_at_evictions() -> (&'static str, &'static str) {
    OUTCOME
        .split_once("impl EvictionReason {")
        .expect("the reasons for evictions")
}

#[test]
fn page_of_metrics_lists_every_reason_for_an_eviction() {
    let (_, rest) = split_at_evictions();
    let (evictions, _) = rest.split_once("impl Fault {").expect("their end");
    let documented = ADMIN_PAGE
        .lines()
        .find(|line| line.starts_with("| `peername_udp_evictions_total"));
    let documented = quoted(documented.expect("the metric"));
    let written = labels(evictions);
    let missing: Vec<_> = written.difference(&documented).collect();
    assert!(!written.is_empty() && missing.is_empty(), "{missing:?}");
}

#[test]
fn page_lists_every_reason_for_a_dropped_datagram() {
    let documented = quoted(UDP_PAGE);
    let written = labels(include_str!("../../../crates/proxy/src/udp/drop_reason.rs"));
    let missing: Vec<_> = written.difference(&documented).collect();
    assert!(!written.is_empty() && missing.is_empty(), "{missing:?}");
}

#[test]
fn page_of_metrics_lists_every_outcome_of_exec() {
    let (_, section) = ADMIN_PAGE
        .split_once("## Metrics of `exec`")
        .expect("the section");
    for (class, outcome) in Counter::ALL.map(classify) {
        let metric = match class {
            Class::Served => "| `peername_connections_total{",
            Class::HeaderError => "| `peername_header_errors_total{",
            Class::Denied => "| `peername_denied_total{",
            Class::Undecided => continue,
        };
        let row = section.lines().find(|line| line.starts_with(metric));
        assert!(quoted(row.expect(metric)).contains(outcome), "{outcome}");
    }
}

#[test]
fn page_of_checks_lists_every_code_and_every_outcome() {
    let documented = quoted(CHECK_PAGE);
    for source in [
        include_str!("../../../crates/intercept/src/authz/verdict.rs"),
        include_str!("../../../crates/intercept/src/authz/metrics.rs"),
    ] {
        let written = labels(source);
        let missing: Vec<_> = written.difference(&documented).collect();
        assert!(written.len() > 5 && missing.is_empty(), "{missing:?}");
    }
}

#[test]
fn page_lists_every_field_of_a_connection() {
    let documented = quoted(PAGE);
    let connection = fields(
        include_str!("../../../crates/proxy/src/telemetry/record/line.rs"),
        "tracing::debug!(",
    );
    let totals = fields(
        include_str!("../../../crates/proxy/src/telemetry/counters.rs"),
        "tracing::info!(",
    );
    assert!(connection.contains("outcome") && totals.contains("connections"));
    let missing: Vec<_> = connection
        .union(&totals)
        .filter(|name| !documented.contains(*name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// This includes lines that belong to no connection. A field has the same name in every command.
#[test]
fn page_lists_every_field_of_every_line() {
    let documented: BTreeSet<_> = quoted(PAGE)
        .union(&quoted(INTERCEPT_PAGE))
        .copied()
        .collect();
    let mut written = BTreeSet::new();
    for name in [
        "cli",
        "daemon",
        "server",
        "observe",
        "proxy",
        "relay",
        "exec",
        "intercept",
        "kernel",
    ] {
        let source = Path::new(CRATES).join(name).join("src");
        for file in sources(&source) {
            let text = std::fs::read_to_string(&file).expect("a source");
            written.extend(events(&text).into_iter().flat_map(event_fields));
        }
    }
    written.extend(audit_fields().map(str::to_owned));
    for known in ["suppressed", "upstream", "tcp", "upstream_tls", "outcome"] {
        assert!(written.contains(known), "{written:?}");
    }
    let missing: Vec<_> = written
        .iter()
        .filter(|name| !documented.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    for (former, name) in [
        ("listen", "tcp"),
        ("to", "upstream"),
        ("target", "upstream"),
        ("more", "suppressed"),
        ("bytes_to_client", "bytes_to_downstream"),
    ] {
        assert!(!written.contains(former), "{former} is {name}");
    }
}

/// A refusal without advice leaves the operator alone with a number.
#[test]
fn every_code_of_intercept_is_documented_and_has_advice() {
    let written = intercept_codes();
    assert!(written.len() > 50, "{written:?}");
    let (_, table) = INTERCEPT_PAGE
        .split_once("| code | what happened |")
        .expect("the table");
    let (table, _) = table.split_once("\n\n").expect("its end");
    let documented = codes(&table.replace("`…_", "`upstream_tls_"), '`');
    let mut advice_by_destination = BTreeSet::new();
    for code in &written {
        // The page has one row for all denied destinations, and each has advice of its own.
        let is_listed = if code.starts_with("destination_") {
            advice_by_destination.insert(advise(code))
        } else {
            documented.contains(code)
        };
        assert!(is_listed, "{code}");
        let is_fault_of_client = ["bad_request", "client_cut", "client_idle"].contains(&&**code);
        assert_eq!(advise(code).is_none(), is_fault_of_client, "{code}");
    }
    for code in documented.union(&codes(ADVICE, '"')) {
        assert!(written.contains(code), "{code} is no code");
    }
}

/// The codes of refusals and the reasons of failed connections in the sources of `intercept`.
fn intercept_codes() -> BTreeSet<String> {
    let mut written = BTreeSet::new();
    for file in sources(&Path::new(CRATES).join("intercept/src")) {
        // The codes of failed checks are those of docs/check.md.
        if file.ends_with("admin/code_advice.rs") || file.ends_with("authz/verdict.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a source");
        for call in [
            "Refusal::new(",
            "Self::new(",
            ".refuse(",
            "count_failed_connection(",
            "fn code(",
            "code: ",
            "code = ",
            ": &str = ",
        ] {
            for rest in text.split(call).skip(1) {
                let body = rest.split("\n    }\n").next().unwrap_or_default();
                written.extend(codes(body.split(';').next().unwrap_or_default(), '"'));
            }
        }
    }
    written
}

/// The quoted texts that have the form of a code: words with `_` between them. Those of a source's tests are left out.
fn codes(text: &str, quote: char) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.split(quote)
        .skip(1)
        .step_by(2)
        .filter(|code| {
            code.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .filter(|code| code.contains('_') && !code.ends_with('_'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn page_lists_every_exit_code() {
    let (_, codes) = PAGE.split_once("## Exit codes").expect("the section");
    let documented: BTreeSet<_> = codes
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split(", "))
        .collect();
    let constants = concat!(
        include_str!("../../../crates/cli/src/exit_code.rs"),
        include_str!("../../../crates/sys/src/process/launch/exit_code.rs"),
    );
    let written: BTreeSet<_> = constants
        .lines()
        .filter_map(|line| line.split_once(": u8 = ")?.1.strip_suffix(';'))
        .collect();
    let missing: Vec<_> = written.difference(&documented).collect();
    assert!(!written.is_empty() && missing.is_empty(), "{missing:?}");
}

/// All Rust files below a directory.
pub(super) fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.expect("an entry").path())
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                vec![path]
            } else {
                Vec::new()
            }
        })
        .collect()
}

/// The arguments of each call of a tracing macro.
fn events(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for level in [
        "error!(", "warn!(", "info!(", "debug!(", "trace!(", "$level!(",
    ] {
        for (at, _) in source.match_indices(level) {
            let before = source[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && c != '_') {
                found.extend(arguments(&source[at + level.len()..]));
            }
        }
    }
    found
}

/// The text up to the parenthesis that closes the call.
fn arguments(rest: &str) -> Option<&str> {
    let (mut depth, mut is_text, mut is_escaped) = (0, false, false);
    for (at, c) in rest.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_text,
            '"' => is_text = !is_text,
            _ if is_text => {}
            ')' if depth == 0 => return Some(&rest[..at]),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The names of an event's fields: `name = …`, `%name`, `?name` and `name`, before the message.
fn event_fields(arguments: &str) -> Vec<String> {
    let mut names = Vec::new();
    for field in split(arguments) {
        let field = field.trim();
        if field.starts_with('"') {
            break;
        }
        let name = field.split('=').next().unwrap_or_default().trim();
        let name = name.trim_start_matches(['%', '?']);
        if !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// The names in the table of the audit line's fields: `both text name = …;`.
fn audit_fields() -> impl Iterator<Item = &'static str> {
    AUDIT_LINE
        .lines()
        .filter_map(|row| row.split_once(" = ")?.0.rsplit_once(' '))
        .filter(|(part, _)| {
            let part = part.trim_start();
            part.starts_with("both ") || part.starts_with("line ")
        })
        .map(|(_, name)| name)
}

/// Splits at the commas that separate arguments.
fn split(arguments: &str) -> Vec<&str> {
    let (mut depth, mut is_text, mut begin, mut parts) = (0, false, 0, Vec::new());
    for (at, c) in arguments.char_indices() {
        match c {
            '"' => is_text = !is_text,
            _ if is_text => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&arguments[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&arguments[begin..]);
    parts
}
