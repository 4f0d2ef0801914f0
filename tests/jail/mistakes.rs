//! Typical mistakes on the command line.

use crate::harness::lab::{assert_fails, stderr_text};
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;

/// Each answer has the cause and what to type, in three lines at most.
#[test]
fn typical_mistakes_have_a_short_answer() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    for (words, expected) in [
        (
            "jail -q curl https://a.test",
            "peername jail -q -- curl https://a.test",
        ),
        ("jail --allow a.test 8080 -- true", "a.test:8080"),
        ("jail --allow 'a.test 8080' -- true", "example.com:8080"),
        (
            "jail --allow https://a.test/x -- true",
            "write --allow a.test/x",
        ),
        (
            "intercept --deny ssh://git@a.test/x",
            "write --deny a.test:22",
        ),
        ("jail --allow a.test/* -- true", "no wildcard"),
        ("jail --allow a.test,b.test -- true", "one rule for each"),
        ("jail --allow git@a.test:x/y -- true", "github.com:22"),
        ("jail --allow 'a.test GET' -- true", "before the host"),
        ("jail --allow POST -- true", "POST example.com"),
        ("jail --allow a.test", "peername jail --allow a.test -- CMD"),
        (
            "jail --allow 'GET web.test' sh -c 'curl x; true'",
            "\npeername jail --allow 'GET web.test' -- sh -c 'curl x; true'\n",
        ),
        (
            "jail --allow 'GET web.test'",
            "\npeername jail --allow 'GET web.test' -- CMD\n",
        ),
        (
            "jail --allow 'https://[2600::1]:8443/' -- true",
            "write --allow '[2600::1]:8443'",
        ),
        ("jail --allow 'GTE a.test' -- true", "not an HTTP method"),
        (
            "jail --allow GET,HEAD:a.test/x -- true",
            "a space follows the methods",
        ),
        ("jail --allow 'deny a.test' -- true", "--deny HOST"),
        (
            "jail --config /nonexistent.toml -- true",
            "no such file; docs/jail.md has examples",
        ),
        (
            "jail --hide /nonexistent/x --allow any -- true",
            "make it first (mkdir -p /nonexistent/x)",
        ),
        (
            "jail --learn list --allow a.test -- true",
            "--learn FILE -- CMD",
        ),
        (
            "jail --learn /nonexistent/list -- true",
            "--learn /nonexistent/list: no such directory: /nonexistent\n",
        ),
        (
            "jail --extra-ca nosuch --allow any -- true",
            "peername: --extra-ca nosuch: no such file",
        ),
        (
            "jail --ca /nonexistent --allow any -- true",
            "peername ca init --ca /nonexistent",
        ),
        (
            "intercept --ca /nonexistent --allow any",
            "peername ca init --ca /nonexistent",
        ),
    ] {
        let output = rig.run_outside(User::Root, &format!("{jail} {words}"));
        assert_fails(&output, 2, &[expected]);
        let errors = stderr_text(&output);
        assert!(errors.trim_end().lines().count() <= 3, "{words}: {errors}");
    }
    for program in ["'curl -sS https://a.test/'", "cd /tmp"] {
        let output = rig.run_outside(
            User::Root,
            &format!("{jail} jail --allow a.test -- {program}"),
        );
        assert_fails(&output, 127, &["sh -c"]);
    }
}
