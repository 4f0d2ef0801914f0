//! The `[jail]` table: its rules, and the files that it names.

use super::{run, text};
use crate::harness::lab::{Scratch, assert_contains, stdout_text};

#[test]
fn config_check_reads_the_rules_of_a_jail() {
    let scratch = Scratch::new();
    let list = scratch.write("list", "a.test\nnot a rule\n");
    for (table, expected) in [
        (
            "rules = [\"deny a.test\"]".to_owned(),
            "denies every request",
        ),
        (
            "rules = [\"allow a.test:53\"]".to_owned(),
            "a rule for port 53, which belongs to the jail's name server",
        ),
        (
            format!("contact = \"x\"\nrules = [\"allow @{list}\"]"),
            "jail.toml, line 3, [jail]: rules allow @",
        ),
        (
            format!("contact = \"x\"\nallow-tcp = [\"@{list}\"]"),
            "jail.toml, line 3, [jail]: allow-tcp @",
        ),
        (
            "inject = [\"a.test=Authorization@/nonexistent\"]".to_owned(),
            "/nonexistent",
        ),
    ] {
        let path = scratch.write("jail.toml", &format!("[jail]\n{table}\n"));
        let output = run(&["config", "check", &path]);
        let printed = stdout_text(&output);
        assert_eq!(output.status.code(), Some(3), "{table}: {printed}");
        assert_contains(&printed, &["jail.toml", expected]);
    }
    for (table, expected) in [
        ("rules = []", "line 2, rules: an empty list: name some"),
        ("log = 3", "line 2, log: use a string"),
        ("rules = true", "line 2, rules: use a list"),
        (
            "log = \"/nonexistent/audit.log\"",
            "line 2, [jail]: log /nonexistent/audit.log: no such directory: /nonexistent",
        ),
        ("allow-unix = \"none\"", "line 2, [jail]: allow-unix "),
    ] {
        let path = scratch.write("jail.toml", &format!("[jail]\n{table}\n"));
        let printed = text(&run(&["config", "check", &path]));
        assert_contains(&printed, &[expected]);
    }
    let table = "[jail]\nrules = [\"allow a.test\"]\n";
    let path = scratch.write("jail.toml", table);
    assert_eq!(run(&["config", "check", &path]).status.code(), Some(0));
    // Another host may have the directory: the file is right.
    let path = scratch.write("jail.toml", "[jail]\nhide = [\"none\"]\n");
    let checked = run(&["config", "check", &path]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let missing = format!("warning: {path}, line 2, [jail]: hide ");
    assert_contains(&text(&checked), &[&missing, "/none: there is no such file"]);
    let started = run(&["jail", "--config", &path, "--", "true"]);
    assert_eq!(started.status.code(), Some(2), "{started:?}");
    // The same file could configure a proxy, too.
    let path = scratch.write("jail.toml", &format!("workers = 2\n{table}"));
    let checked = run(&["config", "check", &path]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let printed = text(&checked);
    assert_contains(&printed, &["note: workers at the top is for proxy, "]);
    assert!(!printed.contains("reload"), "{printed}");
}
