//! docs/logs.md names what the code writes, and nothing else.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/logs.md");
const UDP_PAGE: &str = include_str!("../../../docs/udp.md");

/// What stands in backticks.
fn quoted(page: &str) -> BTreeSet<&str> {
    page.split('`').skip(1).step_by(2).collect()
}

/// The texts that arms of a `match` give: `… => "text",`.
fn labels(source: &str) -> BTreeSet<&str> {
    let arms = source.split("=> \"").skip(1);
    let texts = arms.filter_map(|rest| rest.split('"').next());
    texts
        .filter(|text| {
            text.bytes()
                .all(|octet| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'_')
        })
        .collect()
}

/// The names of an event's fields, in the first call of this macro.
fn fields<'s>(source: &'s str, call: &str) -> BTreeSet<&'s str> {
    let (_, rest) = source.split_once(call).expect(call);
    let (event, _) = rest.split_once(");").expect("its end");
    let lines = event
        .lines()
        .filter_map(|line| line.trim().split_once(" = "));
    let names = lines.map(|(name, _)| name);
    names
        .filter(|name| !name.contains(|c: char| !c.is_ascii_lowercase() && c != '_'))
        .collect()
}

#[test]
fn every_outcome_stands_there_and_no_other() {
    let sources = [
        include_str!("../../../crates/proxy/src/outcome.rs"),
        include_str!("../../../crates/proxy/src/policy/source.rs"),
        include_str!("../../../crates/proxy/src/policy/destination.rs"),
        include_str!("../../../crates/server/src/header_error.rs"),
        include_str!("../../../crates/proto/src/invalid.rs"),
    ];
    let written: BTreeSet<_> = sources.into_iter().flat_map(labels).collect();
    assert!(written.len() > 60, "{written:?}");
    let said = quoted(PAGE);
    let missing: Vec<_> = written.difference(&said).collect();
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

#[test]
fn every_reason_for_a_dropped_datagram_stands_there() {
    let said = quoted(UDP_PAGE);
    let written = labels(include_str!("../../../crates/proxy/src/udp/drop_reason.rs"));
    let missing: Vec<_> = written.difference(&said).collect();
    assert!(!written.is_empty() && missing.is_empty(), "{missing:?}");
}

#[test]
fn every_field_stands_there() {
    let said = quoted(PAGE);
    let connection = fields(
        include_str!("../../../crates/proxy/src/telemetry/record.rs"),
        "tracing::debug!(",
    );
    let totals = fields(
        include_str!("../../../crates/cli/src/logging.rs"),
        "let udp = &totals.datagrams;",
    );
    assert!(connection.contains("outcome") && totals.contains("connections"));
    let missing: Vec<_> = connection
        .union(&totals)
        .filter(|name| !said.contains(*name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_exit_code_stands_there() {
    let (_, codes) = PAGE.split_once("## Exit codes").expect("the section");
    for (code, sources) in [
        ("125", include_str!("../../../crates/cli/src/cmd/exec.rs")),
        ("3", include_str!("../../../crates/cli/src/cmd/doctor.rs")),
        ("2", include_str!("../../../crates/cli/src/main.rs")),
    ] {
        assert!(codes.contains(&format!("\n| {code} |")), "{code}");
        assert!(
            sources.contains(&format!("u8 = {code};")) || sources.contains(code),
            "{code}"
        );
    }
}
