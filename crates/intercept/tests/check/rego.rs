//! Policies that are evaluated in this process: OPA, with the same policies and requests, has to give the same answers.

mod bounded;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::available_parallelism;

use futures_util::future::join_all;
use http::Method;
use peername_intercept::authz::{Decision, RequestKind, ServiceUrl, Verdict};
use tempfile::NamedTempFile;

use crate::ext_authz::denial;
use crate::rig::{CheckInput, ask, client, failure};
use crate::service::Opa;

/// The decision of a verdict, or the code of the failure.
fn decision(verdict: &Verdict) -> Result<Decision, &'static str> {
    failure(verdict).map_or_else(|| Ok(verdict.decision.clone()), Err)
}

/// The error with which a policy is refused at the start.
fn open_error(url: &str) -> String {
    let url: ServiceUrl = url.parse().expect("a URL");
    match url.open(None) {
        Ok(_) => panic!("a bad policy was accepted"),
        Err(error) => error.to_string(),
    }
}

/// Requests of each kind: 7 methods, 4 hosts, 12 paths, one in three with headers, a tunnel now and then.
fn inputs() -> Vec<CheckInput> {
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::PATCH,
    ];
    let hosts = ["a.test", "api.a.test", "192.0.2.9", "b.test"];
    let paths = [
        "/",
        "/pub",
        "/pub/x?y=1",
        "/public",
        "/v1/users/42",
        "/v1/users/x",
        "/admin/../pub",
        "/%70ub",
        "/a%20b?c=%26",
        "/\u{e4}/\u{1f600}",
        "/admin",
        "/pub?token=secret",
    ];
    let mut all = Vec::new();
    for (index, path) in paths
        .into_iter()
        .cycle()
        .take(paths.len() * hosts.len())
        .enumerate()
    {
        let host = hosts[index / paths.len()];
        let kind = match index % 10 {
            9 => RequestKind::Connect,
            _ => RequestKind::Request,
        };
        let is_tunnel = kind == RequestKind::Connect;
        let input = CheckInput {
            kind,
            client: ([192, 0, 2, (index % 250) as u8], 50_000).into(),
            method: if is_tunnel {
                Method::CONNECT
            } else {
                methods[index % 7].clone()
            },
            scheme: match (is_tunnel, index % 2) {
                (true, _) => "",
                (false, 0) => "https",
                (false, _) => "http",
            },
            host,
            port: [443, 80, 8443][index % 3],
            path: if is_tunnel { "" } else { path },
            body: (index % 4 == 1).then(|| (b"{\"amount\": 12.5}".to_vec().into(), index % 8 == 1)),
            ..CheckInput::default()
        };
        all.push(match index % 3 {
            0 => input.header("x-team", b"blue").header("x-team", b"gr\xfcn"),
            1 => input.header("user-agent", b"curl/8.5.0"),
            _ => input,
        });
    }
    all
}

#[tokio::test]
async fn opa_and_the_policy_in_this_process_give_the_same_answers() {
    let inputs = inputs();
    let (mut asked, mut allowed, mut denied, mut failed) = (0, 0, 0, 0);
    for (rule, policy) in POLICIES {
        let opa = Opa::start(policy);
        let opa_client = client(&format!("opa+http://{}/v1/data/{rule}", opa.address));
        let policy_client = client(&format!("rego:{}#{rule}", opa.policy().display()));
        for (number, input) in inputs.iter().enumerate() {
            let by_opa = input.ask(&opa_client).await;
            let by_policy = input.ask(&policy_client).await;
            let (expected, actual) = (decision(&by_opa), decision(&by_policy));
            assert_eq!(
                actual, expected,
                "{rule}, request {number}: {}{}",
                input.host, input.path
            );
            asked += 1;
            match expected {
                Ok(decision) if decision.allows() => allowed += 1,
                Ok(_) => denied += 1,
                Err(_) => failed += 1,
            }
        }
    }
    // Answers of every kind were compared.
    let counts = (asked, allowed, denied, failed);
    assert!(
        asked >= 400 && allowed >= 50 && denied >= 100 && failed >= 10,
        "{counts:?}"
    );
}

/// Without a rule's name, the whole package is queried, as with `/v1/data/PACKAGE`; a directory is read as OPA reads a bundle.
#[tokio::test]
async fn directory_has_modules_and_data() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    std::fs::create_dir_all(dir.join("lists/hosts")).expect("create a directory");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("write");
    write(
        "main.rego",
        "package egress\nimport data.names\nallow if names.is_listed\n",
    );
    write(
        "names.rego",
        "package names\nis_listed if input.attributes.request.http.host in data.lists.hosts.allowed\n",
    );
    write("names_test.rego", "package names\nthis is no policy");
    write(".hidden.rego", "nor is this");
    write("lists/hosts/data.json", "{\"allowed\": [\"origin.test\"]}");
    let policy = |rule: &str| format!("rego:{}{rule}", dir.display());
    // A misspelt rule would be undefined for every request.
    for misspelt in ["alow", "allow2/x", "egress"] {
        let error = open_error(&policy(&format!("#egress/{misspelt}")));
        assert!(error.contains("no package has the rule"), "{error}");
        assert!(
            error.ends_with("there is data.egress, data.names"),
            "{error}"
        );
    }
    let dotted = open_error(&policy("#egress.allow"));
    assert!(dotted.contains("#egress/allow)"), "{dotted}");
    let without_allow = open_error(&policy("#names"));
    assert!(without_allow.contains("no rule `allow`"), "{without_allow}");
    for defined in ["#egress/allow", "#names/is_listed", "#egress/allow/reason"] {
        drop(client(&policy(defined)));
    }
    let client = client(&policy("#egress"));
    assert!(ask(&client).await.decision.allows());
    let elsewhere = CheckInput::with(|input| input.host = "other.test");
    assert_eq!(denial(&elsewhere.ask(&client).await).status.as_u16(), 403);
    let error = |rule: &str| open_error(&policy(rule));
    assert!(
        error("").contains("data.egress, data.names"),
        "{}",
        error("")
    );
    assert!(error("#nothing/allow").contains("no package has the rule"));
    write("lists/hosts/data.json", "[]");
    assert!(error("#egress").contains("data.json: not an object"));
    write("lists/hosts/data.json", "{\"allowed\": ");
    assert!(
        error("#egress").contains("data.json: EOF"),
        "{}",
        error("#egress")
    );
}

#[tokio::test]
async fn errors_of_a_policy_name_file_and_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a.rego");
    let url = format!("rego:{}", file.display());
    let error = open_error(&url);
    assert!(error.contains("no such file"), "{error}");
    for (text, position, detail) in [
        ("package egress\n\nallow if {\n", ".rego:4:", ""),
        (
            "package egress\nallow if undeclared\n",
            ".rego:2:10: ",
            "undeclared",
        ),
        (
            "package egress\nallow if f(1)\n",
            ".rego:2:",
            "could not find function f",
        ),
        (
            "package egress\nallow if http.send({\"url\": \"http://a.test\", \"method\": \"get\"}).status_code == 200\n",
            ".rego:2:",
            "could not find function http.send",
        ),
        ("allow if true\n", ".rego:1:1: ", ""),
        ("", ".rego:1:", ""),
    ] {
        std::fs::write(&file, text).expect("write");
        let error = open_error(&url);
        assert!(
            error.contains(position) && error.contains(detail),
            "{text}: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}

/// A client may cause the failure of its own check. The next request is checked all the same.
#[tokio::test]
async fn failing_policy_is_not_suspended() {
    let file = NamedTempFile::with_suffix(".rego").expect("a file");
    let policy = "package egress
verdict := true
verdict := false if input.attributes.request.http.path == \"/conflict\"
";
    std::fs::write(&file, policy).expect("write");
    let client = client(&format!("rego:{}#egress/verdict", file.path().display()));
    for _ in 0..20 {
        let conflict = CheckInput::with(|input| input.path = "/conflict");
        assert_eq!(decision(&conflict.ask(&client).await), Err("check_status"));
    }
    assert!(ask(&client).await.decision.allows());
}

/// The evaluations of one client wait in a queue of their own. Another client's evaluation overtakes them.
#[tokio::test]
async fn slow_evaluations_of_one_client_delay_no_other_client() {
    let file = NamedTempFile::with_suffix(".rego").expect("a file");
    std::fs::write(&file, SLOW_POLICY).expect("write");
    let policy = client(&format!("rego:{}", file.path().display()));
    let slow = CheckInput::with(|input| input.path = "/slow");
    let other = CheckInput::with(|input| input.client = ([192, 0, 2, 8], 50_000).into());
    let is_answered = AtomicUsize::new(0);
    let ask_slowly = || async {
        slow.ask(&policy).await;
        is_answered.fetch_add(1, Relaxed);
    };
    let cpus = available_parallelism().map_or(1, Into::into);
    let slow_ones = join_all((0..8 * cpus).map(|_| ask_slowly()));
    let other_one = async {
        decision(&other.ask(&policy).await).expect("an answer");
        is_answered.load(Relaxed)
    };
    let (_, before) = tokio::join!(slow_ones, other_one);
    assert!(
        before < 2 * cpus,
        "{before} of the first client's came before it"
    );
}

/// Rules, and the policies that have them.
const POLICIES: [(&str, &str); 10] = [
    ("egress/allow", "package egress
http := input.attributes.request.http
default allow := false
allow if { http.method == \"GET\"; startswith(http.path, \"/pub\") }
allow if { http.method == \"CONNECT\"; endswith(http.host, \":443\") }
"),
    ("egress", "package egress
import rego.v1
http := input.attributes.request.http
methods := {\"GET\", \"HEAD\"}
default allow := false
allow if { http.method in methods; not is_admin }
is_admin if regex.match(`^/admin(/|$)`, http.path)
reason := sprintf(\"%s of %s on port %d\", [http.method, http.host, input.attributes.destination.address.socketAddress.portValue])
"),
    ("egress/verdict", "package egress
http := input.attributes.request.http
verdict := {\"allow\": true, \"headers\": {\"x-by\": lower(http.host)}, \"request_headers_to_remove\": [\"x-team\"]} if {
    glob.match(\"*.a.test\", [\".\"], split(http.host, \":\")[0])
} else := {\"allow\": false, \"http_status\": 451, \"body\": concat(\",\", sort([name | some name, _ in http.headers])), \"reason\": \"by law\"} if {
    net.cidr_contains(\"192.0.2.0/28\", input.attributes.source.address.socketAddress.address)
} else := {\"allow\": count(http.path) < 5, \"cache_control\": \"max-age=3\", \"response_headers_to_add\": {\"x-n\": format_int(http.size, 10)}}
"),
    // Undefined for most requests.
    ("a/b/c", "package a.b
c if { input.attributes.request.http.headers[\"x-team\"] == \"blue,gr\u{fc}n\" }
c if { input.attributes.tlsSession.sni == \"b.test\"; input.attributes.contextExtensions.mode == \"request\" }
"),
    // Neither boolean nor object, and fields of other types.
    ("types/verdict", "package types
verdict := 1 if input.attributes.request.http.method == \"GET\"
verdict := [true] if input.attributes.request.http.method == \"POST\"
verdict := \"true\" if input.attributes.request.http.method == \"PUT\"
verdict := null if input.attributes.request.http.method == \"DELETE\"
verdict := {\"allow\": \"true\"} if input.attributes.request.http.method == \"HEAD\"
verdict := {\"allow\": true, \"headers\": {\"a\": 1}} if input.attributes.request.http.method == \"OPTIONS\"
verdict := {true} if input.attributes.request.http.method == \"PATCH\"
"),
    // Conflicts: an error of the evaluation.
    ("conflict/verdict", "package conflict
verdict := true if input.attributes.request.http.method in {\"GET\", \"POST\", \"PUT\", \"HEAD\"}
verdict := false if input.attributes.destination.address.socketAddress.portValue != 80
"),
    // A rule is undefined if a function in it fails.
    ("undefined/allow", "package undefined
default allow := false
id := to_number(split(input.attributes.request.http.path, \"/\")[3])
allow if id > 40
allow if json.unmarshal(input.attributes.request.http.body).amount == 12.5
"),
    ("functions/allow", "package functions
http := input.attributes.request.http
segments(path) := [s | some s in split(trim_prefix(split(path, \"?\")[0], \"/\"), \"/\"); s != \"\"]
allow if { every s in segments(http.path) { not contains(s, \"%\") }; count(segments(http.path)) > 1 }
allow if { some i; segments(http.path)[i] == \"users\"; i > 0 }
allow if { base64.encode(http.method) == \"R0VU\"; urlish }
urlish if { indexof(http.path, \"?\") > 0 }
"),
    ("sets", "package sets
hosts contains \"a.test\"
hosts contains h if { some h in [\"b.test\", \"api.a.test\"]; h != input.attributes.request.http.host }
host := trim_suffix(trim_suffix(input.attributes.request.http.host, \":8443\"), \":80\")
allowed if host in hosts
http_status := 404 if not allowed
reason := concat(\" \", [x | some x in hosts | {\"z\"}])
"),
    ("strings/allow", "package strings
p := input.attributes.request.http.path
allow if upper(p) == p
allow if { replace(p, \"%\", \"\") != p; substring(p, 0, 2) == \"/a\" }
allow if count(p) == 4
allow if object.get(input.attributes.request.http.headers, \"user-agent\", \"none\") == \"none\"
"),
];

/// Tens of milliseconds for one path.
const SLOW_POLICY: &str = "package egress
path := input.attributes.request.http.path
allow if path != \"/slow\"
allow if {
    path == \"/slow\"
    numbers := [n | some n in numbers.range(1, 120)]
    count([1 | some a in numbers; some b in numbers; a * b == 7]) > 0
}
";
