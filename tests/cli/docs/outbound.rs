//! The pages about outbound traffic, command by command: README.md, docs/tutorial-outbound.md, policy.md, agents.md, ci.md and
//! colleagues.md. The public origins are replaced by the test's own, and an ordinary user runs everything in a directory of
//! the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::harness::addr::v4;
use crate::harness::lab::assert_contains;
use crate::harness::page::Page;
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;

const README: Page = Page::new(include_str!("../../../README.md"));
const TUTORIAL: Page = Page::new(include_str!("../../../docs/tutorial-outbound.md"));
const POLICY: Page = Page::new(include_str!("../../../docs/policy.md"));
const AGENTS: Page = Page::new(include_str!("../../../docs/agents.md"));
const CI: Page = Page::new(include_str!("../../../docs/ci.md"));
const COLLEAGUES: Page = Page::new(include_str!("../../../docs/colleagues.md"));

/// What a command printed on standard output and standard error; the audit lines are among the latter.
struct Printed {
    out: String,
    errors: String,
    is_success: bool,
}

/// A reader of the pages, who types their commands.
struct Reader(JailRig);

impl Reader {
    fn new() -> Self {
        Self(JailRig::new())
    }

    /// Runs a command of a page, with `-v` for a jail.
    fn types(&self, command: &str) -> Printed {
        let output: Output = self.0.run_outside(User::Nobody, &self.script(command));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Printed {
            out: text(output.stdout),
            errors: text(output.stderr),
            is_success: output.status.success(),
        }
    }

    fn script(&self, command: &str) -> String {
        let scratch = self.0.scratch().path_text("");
        let origins = format!("--extra-ca {scratch}/root.pem --allow-destination 10.81.0.0/24");
        let command = command
            .replace("target/release/peername", "peername")
            .replace("peername jail", &format!("peername jail -v {origins}"))
            .replace(
                "peername intercept",
                &format!("exec peername intercept {origins}"),
            )
            .replace("example.com", "a.test")
            .replace("example.org", "b.test");
        format!(
            "cd {scratch} && export PATH={scratch}:$PATH HOME={scratch} XDG_STATE_HOME={scratch}/state && {command}"
        )
    }
}

#[test]
fn readmes_jail_lets_one_host_out() {
    let reader = Reader::new();
    let section = README.section("## What may go out: `intercept`, `jail`");
    let [page, denied, query] = &section.commands()[..] else {
        panic!("three commands");
    };
    let page = reader.types(page);
    assert!(page.is_success && page.out == "hello\n", "{}", page.errors);
    assert_contains(
        &reader.types(denied).out,
        &["\"code\":\"denied\"", "no rule allows it"],
    );
    assert_eq!(reader.types(query).out, "");
}

#[test]
fn tutorial_goes_from_one_host_to_a_list() {
    let reader = Reader::new();
    let step = |title: &str| TUTORIAL.section(title).commands();
    let [allowed, denied] = &step("## 1. One host")[..] else {
        panic!("two commands");
    };
    assert_eq!(reader.types(allowed).out, "hello\n");
    assert_contains(
        &reader.types(denied).out,
        &["\"code\":\"denied\"", "\"detail\":\"no rule allows it\""],
    );
    let [port, metadata, query] = &step("## 2. Ways around")[..] else {
        panic!("three commands");
    };
    let port = reader.types(port);
    // The port is asserted in the audit line, because curl writes its own line in parts, with others in between.
    assert!(!port.is_success, "{}", port.errors);
    assert_contains(&port.errors, &["curl: (7)", "\"port\":25"]);
    assert_contains(&reader.types(metadata).out, &["\"code\":\"denied\""]);
    assert_eq!(reader.types(query).out, "");
    let [learn, list, again] = &step("## 3. Learn the list")[..] else {
        panic!("three commands");
    };
    assert_eq!(reader.types(learn).out, "hello\nhello\n");
    assert_contains(&reader.types(list).out, &["\na.test\n", "\nb.test\n"]);
    assert_eq!(reader.types(again).out, "hello\nhello\n");
    let [denied, find] = &step("## 4. See what it did")[..] else {
        panic!("two commands");
    };
    assert_contains(&reader.types(denied).out, &["\"code\":\"denied\""]);
    assert_contains(&reader.types(find).out, &["\"host\":\"www.b.test\""]);
}

#[test]
fn tutorial_adds_a_key_outside_of_the_jail() {
    let reader = Reader::new();
    let commands = TUTORIAL
        .section("## 5. A key that the program never holds")
        .commands();
    let [key, jail] = &commands[..] else {
        panic!("two commands");
    };
    assert!(reader.types(key).is_success);
    let jailed = reader.types(jail);
    assert_eq!(jailed.out, "hello\n");
    assert_contains(&jailed.errors, &["\"injected\":\"authorization\""]);
    let reads = reader.types(&jail.replace("curl -sS https://example.com/", "cat token"));
    assert_eq!(reads.out, "", "the file is hidden");
}

#[test]
fn tutorial_starts_a_proxy_for_other_programs() {
    let reader = Reader::new();
    let commands = TUTORIAL
        .section("## 6. For other programs of this host")
        .commands();
    let [init, intercept, trust, curl] = &commands[..] else {
        panic!("four commands");
    };
    assert!(reader.types(init).is_success);
    let script = reader.script(intercept);
    let _proxy = reader
        .0
        .start_outside(User::Nobody, &["sh", "-c", &script])
        .wait_listening(&[v4([127, 0, 0, 1], 8080)]);
    let fetched = reader.types(&format!("{trust}\n{curl}"));
    assert_eq!(fetched.out, "hello\n", "{}", fetched.errors);
    let denied = reader.types(&format!(
        "{trust}\n{}",
        curl.replace("example.com", "example.org")
    ));
    assert_contains(&denied.errors, &["403"]);
}

/// The first list of docs/policy.md.
#[test]
fn list_of_the_page_decides_by_host_and_path() {
    let reader = Reader::new();
    assert!(reader.types("peername ca init").is_success);
    let command = POLICY.command("peername intercept --deny");
    let _proxy = reader
        .0
        .start_outside(User::Nobody, &["sh", "-c", &reader.script(&command)])
        .wait_listening(&[v4([127, 0, 0, 1], 8080)]);
    let fetch = |url: &str| {
        let proxy = "https_proxy=http://127.0.0.1:8080";
        reader.types(&format!(
            "eval \"$(peername ca env)\"\n{proxy} curl -sS {url}"
        ))
    };
    assert_eq!(fetch("https://example.com/").out, "hello\n");
    let denied = fetch("https://example.com/admin/x");
    assert_contains(&denied.out, &["denied by the rule deny a.test/admin"]);
    assert_contains(&fetch("https://example.org/").errors, &["403"]);
}

/// An agent that calls an API with a placeholder for the key, calls another host, and lists its user's secrets.
const AGENT: &str = "#!/bin/sh
curl -sS -H 'Authorization: Bearer placeholder' https://a.test/
curl -sS https://b.test/
ls ~/.ssh ~/.aws
";

#[test]
fn agent_reaches_its_list_and_none_of_the_hidden_files() {
    let reader = Reader::new();
    let scratch = reader.0.scratch();
    let agent = scratch.write("agent", AGENT);
    fs::set_permissions(agent, fs::Permissions::from_mode(0o755)).expect("chmod(2)");
    for hidden in [".ssh", ".aws"] {
        fs::create_dir(scratch.path(hidden)).expect("a directory");
        scratch.write(&format!("{hidden}/key"), "");
    }
    let commands = AGENTS.commands();
    let [learn, list, inject] = &commands[..] else {
        panic!("three commands");
    };
    assert_contains(&reader.types(learn).out, &["hello\nhello\n"]);
    let learned = scratch.read("hosts.txt");
    assert_contains(&learned, &["\na.test\n", "\nb.test\n"]);
    scratch.write("hosts.txt", &learned.replace("b.test\n", ""));
    let listed = reader.types(list);
    assert_contains(&listed.out, &["hello\n{", "\"code\":\"denied\""]);
    assert!(!listed.out.contains("key"), "{}", listed.out);
    assert_contains(
        &scratch.read("requests.jsonl"),
        &["\"decision\":\"denied\""],
    );
    scratch.write("key", "Bearer s3cret\n");
    let inject = inject.replace("api.example.com", "example.com");
    assert_contains(
        &reader.types(&inject).errors,
        &["\"injected\":\"authorization\""],
    );
}

/// `make test` itself succeeds even if a request of it was denied.
#[test]
fn ci_step_fails_for_what_was_denied() {
    let reader = Reader::new();
    let commands = CI.commands();
    let [learn, step] = &commands[..] else {
        panic!("two commands");
    };
    let makefile = |url: &str| {
        let recipe = format!("test:\n\tcurl -sS {url}\n");
        reader.0.scratch().write("Makefile", &recipe);
    };
    makefile("https://a.test/");
    for command in [learn, step] {
        let typed = reader.types(command);
        assert!(typed.is_success, "{command}: {}", typed.errors);
    }
    makefile("https://b.test/");
    let denied = reader.types(step);
    assert!(!denied.is_success);
    assert_contains(&denied.errors, &["\n+b.test\n"]);
}

#[test]
fn colleague_finds_the_request_by_its_id() {
    let reader = Reader::new();
    let request = COLLEAGUES.command("curl -sS");
    let log = "--log requests.jsonl";
    let jail = format!("peername jail --allow example.com {log} -- {request}");
    let denied = reader.types(&jail);
    let printed: serde_json::Value = serde_json::from_str(&denied.out).expect("JSON");
    let documented = COLLEAGUES.block("{").replace('\n', "");
    let documented: serde_json::Value = serde_json::from_str(&documented).expect("JSON");
    let (id, documented_id) = (&printed["request_id"], &documented["request_id"]);
    let [id, documented_id] = [id, documented_id].map(|id| id.as_str().expect("an id"));
    let as_documented = denied
        .out
        .trim()
        .replace(id, documented_id)
        .replace("b.test", "example.org");
    assert_eq!(as_documented, COLLEAGUES.block("{").replace('\n', ""));
    let find = COLLEAGUES.command("grep ").replace(documented_id, id);
    assert_contains(
        &reader.types(&find).out,
        &["\"host\":\"b.test\"", "no rule allows it"],
    );
}
