//! Package managers, clients of services and a browser, unmodified: the mirror of the test is the only allowed host.

use crate::harness::lab::{assert_contains, stderr_text};
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;

const ALLOW: [&str; 2] = ["-q", "--allow=a.test"];

/// Runs a Python script that writes files below nginx's root.
fn publish(rig: &JailRig, script: &str) {
    let script = rig.scratch().write("publish.py", script);
    let root = rig.scratch().path_text(".");
    rig.stage
        .lab
        .client
        .run("/usr/bin/python3", &[&script, &root]);
}

/// Runs the script for each host: it prints this for the allowed one, and fails with this error for another.
#[track_caller]
fn assert_serves_the_allowed_host_only(
    rig: &JailRig,
    user: User,
    script: impl Fn(&str) -> String,
    printed: &str,
    error: &str,
) {
    assert_eq!(rig.succeeds(user, &ALLOW, &script("a.test")), printed);
    let denied = rig.run(user, &ALLOW, &script("b.test"));
    assert!(!denied.status.success(), "{denied:?}");
    assert_contains(&stderr_text(&denied), &[error]);
}

#[test]
fn pip_installs_from_the_allowed_index_only() {
    let rig = JailRig::new();
    publish(&rig, WHEEL);
    let install = |host: &str| {
        format!(
            "export HOME=$(mktemp -d); trap 'rm -rf $HOME' EXIT; cd $HOME; unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL; PIP_CONFIG_FILE=/dev/null /usr/bin/python3 -m pip install -q --no-cache-dir \
             --disable-pip-version-check --retries 0 --target out --index-url https://{host}/simple/ tiny && \
             PYTHONPATH=out /usr/bin/python3 -c 'import tiny; print(tiny.TEXT)'"
        )
    };
    assert_serves_the_allowed_host_only(
        &rig,
        User::Nobody,
        install,
        "from the mirror\n",
        "No matching distribution",
    );
}

/// The jail overrides the proxy of pip's configuration file, if there is one. Without a proxy in the file it sets none, because
/// pip would then not reach a server inside the jail.
#[test]
fn pip_needs_no_proxy_and_reaches_an_index_in_the_jail() {
    let rig = JailRig::new();
    publish(&rig, WHEEL);
    let install = |index: &str| {
        format!(
            "unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL; out=$(mktemp -d); trap 'rm -rf $out; kill $server 2>/dev/null' EXIT
             cd {root}; /usr/bin/python3 -m http.server --bind 127.0.0.1 3141 >/dev/null 2>&1 & server=$!
             while ! curl -s -o /dev/null 127.0.0.1:3141/; do sleep 0.1; done
             /usr/bin/python3 -m pip install -q --no-cache-dir --disable-pip-version-check --retries 0 --target $out \
             --index-url {index} tiny && PYTHONPATH=$out /usr/bin/python3 -c 'import tiny; print(tiny.TEXT)'",
            root = rig.scratch().path_text(".")
        )
    };
    let configuration = "[global]\nproxy = http://proxy.corp.test:3128\n";
    let configuration = rig.scratch().write("pip.conf", configuration);
    for (file, index) in [
        ("/dev/null", "http://127.0.0.1:3141/simple/"),
        (&configuration, "https://a.test/simple/"),
    ] {
        let variables = [
            "HOME=/nonexistent",
            &format!("PIP_CONFIG_FILE={file}"),
            "PIP_PROXY=http://proxy.corp.test:3128",
        ];
        let printed = rig.succeeds_with(&variables, &ALLOW, &install(index));
        assert_eq!(printed, "from the mirror\n");
    }
}

#[test]
fn npm_installs_from_the_allowed_registry_only() {
    let rig = JailRig::new();
    publish(&rig, NPM_PACKAGE);
    let install = |host: &str| {
        format!(
            "export HOME=$(mktemp -d); trap 'rm -rf $HOME' EXIT; cd $HOME; npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 \
             --loglevel=error --registry=https://{host}/npm/ tiny >&2 && node -e \"console.log(require('tiny'))\""
        )
    };
    assert_serves_the_allowed_host_only(&rig, User::Nobody, install, "from the mirror\n", "403");
}

/// The sparse protocol, over HTTP/2.
#[test]
fn cargo_fetches_from_the_allowed_registry_only() {
    let rig = JailRig::new();
    publish(&rig, CRATE);
    let fetch = |host: &str| {
        format!(
            "export CARGO_HOME=$(mktemp -d); trap 'rm -rf $CARGO_HOME' EXIT; cd $CARGO_HOME; mkdir src; touch src/lib.rs
             printf '[package]\\nname = \"user\"\\nedition = \"2021\"\\n[dependencies]\\ntiny = \"1\"\\n' >Cargo.toml
             printf '[source.crates-io]\\nreplace-with = \"mirror\"\\n[source.mirror]\\nregistry = \"sparse+https://{host}/index/\"\\n' >config.toml
             cargo fetch && cat registry/src/*/tiny-1.0.0/src/lib.rs"
        )
    };
    assert_serves_the_allowed_host_only(
        &rig,
        User::Root,
        fetch,
        "//! From the mirror.\n",
        "no rule allows it",
    );
}

/// Configuration files and options name a proxy that a jail can't reach. The programs reach the allowed host nevertheless.
#[test]
fn proxies_that_programs_are_configured_for_are_not_needed() {
    let rig = JailRig::new();
    publish(&rig, WHEEL);
    publish(&rig, NPM_PACKAGE);
    publish(&rig, CRATE);
    let (host, port) = ("proxy.corp.test", 3128);
    let proxy = format!("http://{host}:{port}");
    let configured_by_file = [
        format!(
            "printf 'proxy = {proxy}\nhttps-proxy = {proxy}\n' >.npmrc && npm install --no-audit --no-fund --no-update-notifier \
             --fetch-retries=0 --loglevel=error --registry=https://a.test/npm/ tiny >&2 && node -e \"console.log(require('tiny'))\""
        ),
        format!(
            "mkdir src && touch src/lib.rs && printf '[package]\nname = \"user\"\nedition = \"2021\"\n[dependencies]\ntiny = \"1\"\n' >Cargo.toml && \
             printf '[http]\nproxy = \"{proxy}\"\n[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\n\
             registry = \"sparse+https://a.test/index/\"\n' >config.toml && \
             env CARGO_HOME=$HOME HOME=/root cargo fetch && grep -o 'From the mirror' registry/src/*/tiny-1.0.0/src/lib.rs | tr F f"
        ),
        format!(
            "git config --global http.proxy {proxy} && GIT_CURL_VERBOSE=1 git ls-remote https://a.test/absent.git 2>&1 | \
             grep -q 'not found' && echo from the mirror"
        ),
    ];
    // No variable overrides options, so the interceptor answers in place of the proxy.
    let configured_by_option = [
        format!(
            "curl -sS -x {proxy} https://a.test/simple/tiny/ | grep -q tiny && echo from the mirror"
        ),
        format!(
            "curl -sS -x {proxy} http://a.test/simple/tiny/ | grep -q tiny && echo from the mirror"
        ),
        format!(
            "printf '<settings><localRepository>%s</localRepository><proxies><proxy><host>{host}</host><port>{port}</port></proxy></proxies>\
             <mirrors><mirror><id>m</id><url>https://a.test/maven/</url><mirrorOf>*</mirrorOf></mirror></mirrors></settings>' $HOME >s.xml
             mvn -B -q -s s.xml help:help >&2; echo from the mirror"
        ),
    ];
    let with_port = [&ALLOW[..], &["--port=3128"]].concat();
    let by_file = configured_by_file
        .iter()
        .map(|program| (&ALLOW[..], program));
    let by_option = configured_by_option
        .iter()
        .map(|program| (&with_port[..], program));
    for (options, program) in by_file.chain(by_option) {
        let script =
            format!("export HOME=$(mktemp -d); trap 'rm -rf $HOME' EXIT; cd $HOME; {program}");
        let printed = rig.succeeds(User::Root, options, &script);
        assert_eq!(printed.trim(), "from the mirror", "{program}");
    }
    let log = rig.scratch().read("access.log");
    assert_contains(&log, &["https a.test GET /maven/org/"]);
    let denied =
        format!("curl -sS -x {proxy} https://b.test/ ; curl -sS -x {proxy} http://b.test/");
    let denied = rig.run(User::Root, &with_port, &denied);
    let printed = [denied.stdout, denied.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert_contains(&printed, &["403", "no rule allows it"]);
}

/// Clients of services, with trust and configuration of their own, reach the allowed host, and no other.
#[test]
fn clients_of_apis_reach_the_allowed_host_only() {
    let rig = JailRig::new();
    publish(&rig, API);
    let gh = |host: &str| format!("GH_HOST={host} GH_ENTERPRISE_TOKEN=x gh api user");
    let kubectl =
        |host: &str| format!("kubectl --server=https://{host} --token=x get --raw /version");
    let aws = |host: &str| {
        format!(
            "aws --no-sign-request --region us-east-1 --endpoint-url https://{host} s3api get-object --bucket mirror --key tiny out >&2 && cat out"
        )
    };
    for client in [&gh as &dyn Fn(&str) -> String, &kubectl, &aws] {
        let at_home = |host| {
            format!(
                "cd $(mktemp -d); trap 'rm -rf $PWD' EXIT; export HOME=$PWD; {}",
                client(host)
            )
        };
        let printed = rig.succeeds(User::Root, &ALLOW, &at_home("a.test"));
        assert_contains(&printed, &["from the mirror"]);
        let denied = rig.run(User::Root, &ALLOW, &at_home("b.test"));
        let errors = [denied.stdout, denied.stderr].concat();
        let errors = String::from_utf8_lossy(&errors);
        assert!(
            errors.contains("403") || errors.contains("Forbidden"),
            "{errors}"
        );
    }
}

/// apt changes its user from root to another one for downloads.
#[test]
fn apt_updates_from_the_allowed_repository_only() {
    let rig = JailRig::new();
    publish(&rig, REPOSITORY);
    let update = |host: &str| {
        format!(
            "dir=$(mktemp -d); trap 'rm -rf $dir' EXIT; chmod 755 $dir; mkdir -p $dir/lists/partial $dir/cache/archives/partial
             echo 'deb [trusted=yes allow-insecure=yes] http://{host}/apt ./' >$dir/sources.list
             set -- -o Dir::State=$dir -o Dir::State::status=/dev/null -o Dir::Cache=$dir/cache -o Dir::Etc::sourcelist=$dir/sources.list \
                 -o Dir::Etc::sourceparts=- -o Acquire::http::Proxy=DIRECT -o Acquire::Retries=0
             apt-get \"$@\" update >&2; apt-cache \"$@\" show tiny"
        )
    };
    let printed = rig.succeeds(User::Root, &ALLOW, &update("a.test"));
    assert_contains(&printed, &["from the mirror"]);
    let denied = rig.run(User::Root, &ALLOW, &update("b.test"));
    assert!(!denied.status.success(), "{denied:?}");
    assert_contains(&stderr_text(&denied), &["403"]);
}

/// Chromium trusts authorities of its own, and those of a policy.
#[test]
fn browser_shows_the_page_of_an_allowed_host_and_the_denial_of_another() {
    let rig = JailRig::new();
    let browse = |url: &str| {
        format!(
            "export HOME=$(mktemp -d); trap 'rm -rf $HOME' EXIT
             timeout 50 chromium --headless --no-sandbox --disable-gpu --user-data-dir=$HOME/profile --dump-dom {url}"
        )
    };
    let shown = rig.succeeds(User::Root, &ALLOW, &browse("https://a.test/echo"));
    assert_contains(&shown, &["GET a.test HTTP/2.0"]);
    let shown = rig.succeeds(User::Root, &ALLOW, &browse("https://b.test/echo"));
    assert_contains(&shown, &["No rule allows it"]);
}

const WHEEL: &str = include_str!("tools/wheel.py");

const API: &str = r#"
import json, os, sys
for path in ("api/v3/user", "version", "mirror/tiny"):
    path = sys.argv[1] + "/" + path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    json.dump({"text": "from the mirror"}, open(path, "w"))
"#;

const NPM_PACKAGE: &str = include_str!("tools/npm_package.py");

const CRATE: &str = include_str!("tools/crate.py");

const REPOSITORY: &str = r#"
import os, sys
os.makedirs(sys.argv[1] + "/apt")
package = "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@a.test>\nFilename: ./tiny.deb\nSize: 1\nSHA256: " + "0" * 64
open(sys.argv[1] + "/apt/Packages", "w").write(package + "\nDescription: from the mirror\n")
"#;
