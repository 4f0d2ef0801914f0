//! Programs trust the interceptor's authority, by variables and by the files of the system.

use crate::harness::lab::{stderr_text, stdout_text};
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;

/// The programs run with the variables of the jail and, if they read the authorities of the system, also without (`env -i`).
#[test]
fn programs_trust_the_interceptor() {
    let rig = JailRig::new();
    let java = rig.scratch().write("Get.java", JAVA);
    rig.scratch().write("get.go", GO);
    let build = format!(
        "cd {} && GOCACHE=/tmp/peername-go-cache CGO_ENABLED=0 go build -o get get.go",
        rig.scratch().path_text(".")
    );
    rig.stage.lab.client.run(
        "sh",
        &["-c", &format!("PATH=$PATH:/usr/local/go/bin; {build}")],
    );
    let node = "require('https').get('https://a.test/echo', r => r.pipe(process.stdout))";
    let python =
        "import urllib.request as u; print(u.urlopen('https://a.test/echo').read().decode())";
    let programs = [
        "curl -sS https://a.test/echo".to_owned(),
        "env -i curl -sS https://a.test/echo".to_owned(),
        format!("/usr/bin/python3 -c \"{python}\""),
        format!("env -i /usr/bin/python3 -c \"{python}\""),
        format!("node -e \"{node}\""),
        format!("java {java}"),
        format!("env -i java {java}"),
        format!("env -i {}", rig.scratch().path_text("get")),
        "wget -qO- https://a.test/echo".to_owned(),
        "env -i openssl s_client -verify_return_error -connect a.test:443 </dev/null 2>&1 | grep -o 'Verify return code: 0' && echo GET a.test".to_owned(),
    ];
    for program in programs {
        let output = rig.run(User::Nobody, &[], &program);
        let printed = stdout_text(&output);
        assert!(printed.contains("GET a.test"), "{program}: {output:?}");
    }
}

#[test]
fn git_clones_over_https() {
    let rig = JailRig::new();
    let dir = rig.scratch().path_text(".");
    let make = format!(
        "cd {dir} && git init -q work && cd work && git -c user.name=t -c user.email=t@a.test commit -q --allow-empty -m first && \
         cd .. && git clone -q --bare work repo.git && git -C repo.git update-server-info && chmod -R a+rX repo.git"
    );
    rig.stage.lab.client.run("sh", &["-ec", &make]);
    let script = "dir=$(mktemp -d); trap 'rm -rf $dir' EXIT; cd $dir && git clone -q https://a.test/repo.git c && git -C c log --format=%s";
    assert_eq!(rig.succeeds(User::Nobody, &[], script), "first\n");
}

/// With JAVA_TOOL_OPTIONS, Java would write a line to standard error, which scripts read.
#[test]
fn java_writes_nothing_of_its_own() {
    let rig = JailRig::new();
    let output = rig.run(User::Nobody, &["-q"], "java -version");
    let errors = stderr_text(&output);
    assert!(errors.starts_with("openjdk version"), "{output:?}");
}

/// The user's own variables name authorities that are trusted beside the interceptor's: a passthrough tunnel shows the
/// certificate of the origin.
#[test]
fn bundles_of_the_users_own_are_merged() {
    let rig = JailRig::new();
    let root = rig.scratch().path_text("root.pem");
    let jail = rig.scratch().path_text("peername");
    let options = ["-q", "--allow=*", "--passthrough=a.test"];
    for (variable, program) in [
        ("CURL_CA_BUNDLE", CURL_BOTH),
        ("SSL_CERT_FILE", CURL_BOTH),
        ("REQUESTS_CA_BUNDLE", CURL_BOTH),
        ("NODE_EXTRA_CA_CERTS", NODE_BOTH),
    ] {
        // Without --extra-ca, which the bundles have, too.
        let script = format!(
            "{variable}={root} {jail} jail --allow-destination=10.81.0.0/24 -q --allow='*' --passthrough=a.test -- {program}"
        );
        let output = rig.run_outside(User::Nobody, &script);
        let printed = stdout_text(&output);
        // The interceptor may not trust b.test. Its error response then names the host, over TLS with its own certificate.
        assert!(
            printed.contains("GET a.test") && printed.contains("b.test"),
            "{variable}: {output:?}"
        );
    }
    // These variables, which some programs read instead, name the jail's bundle.
    for name in [
        "HTTPLIB2_CA_CERTS",
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
        "NIX_SSL_CERT_FILE",
        "npm_config_cafile",
    ] {
        let script =
            format!("curl -sS --capath /nonexistent --cacert \"${name}\" https://b.test/echo");
        let printed = rig.succeeds(User::Nobody, &options, &script);
        assert!(printed.starts_with("GET b.test "), "{name}: {printed}");
    }
}

/// A connection that is relayed unopened shows the certificate of the origin, to programs with the variables and without.
#[test]
fn authority_of_extra_ca_is_trusted_by_the_program() {
    let rig = JailRig::new();
    let options = ["-q", "--allow=*", "--passthrough=a.test"];
    let node =
        "node -e \"require('https').get('https://a.test/echo', r => r.pipe(process.stdout))\"";
    for program in [
        "curl -sS https://a.test/echo",
        "env -i curl -sS https://a.test/echo",
        node,
    ] {
        let printed = rig.succeeds(User::Nobody, &options, program);
        assert!(printed.starts_with("GET a.test "), "{program}: {printed}");
    }
}

#[test]
fn own_authority_is_used_on_request() {
    let rig = JailRig::new();
    let ca = rig.scratch().path_text("ca");
    let pem = rig.scratch().path_text("ca.pem");
    let script = format!("curl -sS --capath /nonexistent --cacert {pem} https://a.test/echo");
    let printed = rig.succeeds(User::Root, &["--ca", &ca], &script);
    assert!(printed.starts_with("GET a.test "), "{printed}");
    let other = rig.run(User::Root, &[], &script);
    assert_eq!(other.status.code(), Some(60), "{other:?}");
}

/// Requests an origin by a passthrough tunnel, and one whose TLS the interceptor terminates.
const CURL_BOTH: &str = "curl -sS https://a.test/echo https://b.test/echo";
const NODE_BOTH: &str = "node -e \"for (const name of ['a', 'b']) \
    require('https').get('https://' + name + '.test/echo', r => r.pipe(process.stdout))\"";

const JAVA: &str = include_str!("trust/get.java");

const GO: &str = include_str!("trust/get.go");
