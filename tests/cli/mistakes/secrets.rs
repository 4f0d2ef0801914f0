//! Secrets in wrong values.

use crate::harness::lab::{Host, assert_contains};
use crate::harness::peername::Peername;

/// What is left of a wrong value is enough to find the mistake.
#[test]
fn secrets_of_wrong_values_are_not_printed() {
    let host = Host::new();
    for (args, says) in [
        (
            &["decode", "http://user:s3cr3t@a.test/"][..],
            "it reads standard input: < ",
        ),
        (
            &[
                "intercept",
                "--upstream-proxy=socks5://user:s3cr3t@a.test:1",
            ],
            "'socks5://***@a.test:1' for '--upstream-proxy <URL>': use http://HOST:PORT or ",
        ),
        (
            &["intercept", "--upstream-proxy", "user:s3cr3t@a.test:1"],
            "'***@a.test:1'",
        ),
        (
            &["intercept", "--upstream-proxy=http://user:s3/cr3t@a.test:1"],
            "'http://***@a.test:1'",
        ),
        (
            &["intercept", "--check=http://user:s3cr3t@127.0.0.1/"],
            "'http://***@127.0.0.1/'",
        ),
        (
            &["intercept", "--check=user:s3cr3t@127.0.0.1:1"],
            "'***@127.0.0.1:1' for '--check <URL>': not a URL; write ",
        ),
        (
            &["jail", "--otlp=grpc://user:s3cr3t@a.test", "--", "true"],
            "'grpc://***@a.test'",
        ),
        (
            &["intercept", "--inject=a.test=Authorization: Bearer s3cr3t"],
            "'a.test=…' for '--inject <HOST=HEADER@FILE>': use HOST=HEADER@FILE, ",
        ),
        (
            &["intercept", "--inject", "Authorization: Bearer s3cr3t="],
            "'…'",
        ),
        (
            &["jail", "--inject", "a.test=X-Key: s3cr3t", "curl"],
            "peername jail --inject ",
        ),
        (
            &["jail", "curl", "https://user:s3cr3t@a.test/"],
            "***@a.test/",
        ),
        (
            &["jail", "--allow=https://user:s3cr3t@a.test/", "--", "true"],
            "write --allow a.test",
        ),
        (
            &["intercept", "http://user:s3cr3t@a.test"],
            "unexpected argument 'http://***@a.test'",
        ),
    ] {
        let printed = Peername::run_failing(&host, args, 2);
        assert_contains(&printed, &[says]);
        assert!(!printed.contains("s3"), "{printed}");
    }
}
