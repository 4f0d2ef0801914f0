//! The alert rules and the dashboard of `packaging/`: they are valid, the rules fire for their causes, and they query metrics
//! that exist, as the status page and `peername top` do.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::follow::{shell, start};
use super::logs_page::sources;
use crate::harness::addr::v4;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Process, Scratch, assert_contains, wait_for};
use crate::harness::page::Page;
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR};
use crate::harness::rig::proxy::ProxyRig;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The address that `packaging/prometheus/scrape.yml` scrapes.
const ADMIN: &str = "--admin=127.0.0.1:9100";
const ADMIN_PAGE: Page = Page::new(include_str!("../../../docs/admin.md"));
const AGENT_PAGE: &str = include_str!("../../../docs/agent.md");
const CHECK_PAGE: &str = include_str!("../../../docs/check.md");
const INTERCEPT_PAGE: &str = include_str!("../../../docs/intercept.md");
const TYPES: [&str; 3] = ["counter", "gauge", "histogram"];
const PAGE: &str = include_str!("../../../crates/observe/src/admin/page.html");
const TOP: [&str; 4] = [
    include_str!("../../../crates/cli/src/cmd/top/app.rs"),
    include_str!("../../../crates/cli/src/cmd/top/screen.rs"),
    include_str!("../../../crates/cli/src/cmd/top/summary.rs"),
    include_str!("../../../crates/cli/src/cmd/top/text.rs"),
];

fn packaged(path: &str) -> String {
    fs::read_to_string(format!("{REPOSITORY}/packaging/{path}")).expect(path)
}

#[test]
fn alerts_fire_for_their_causes_and_without_a_cause_none_does() {
    let rules = format!("{REPOSITORY}/tests/cli/docs/alerts_test.yml");
    Host::new().run("promtool", &["test", "rules", &rules]);
    let tested = fs::read_to_string(rules).expect("the rules' tests");
    let alerts = packaged("prometheus/alerts.yml");
    for name in alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        let tests = tested.matches(&format!("alertname: {name}")).count();
        assert!(
            tests >= 2,
            "{name}: one without a cause, one with each cause"
        );
    }
}

/// What each command exports.
struct Scrapes {
    proxy: String,
    intercept: String,
    exec: String,
}

/// Starts each command with a cause for the metrics that are exported once they have counted, and scrapes it.
fn scrape_commands() -> Scrapes {
    let proxy = ProxyRig::new(&[ADMIN]);
    drop(proxy.connect_client(v4([203, 0, 113, 7], 56324)));
    let intercept = InterceptRig::new(&[
        ADMIN,
        "--check=http://127.0.0.1:9/",
        "--on-check-failure=allow",
        "--allow-client=203.0.113.9",
    ]);
    // A counter with labels is exported once it has counted. These count an answer of an origin, a request to one that is not
    // there, and a connection of a client that is not allowed.
    assert_eq!(intercept.curl_status(&["http://a.test/"]), 200);
    assert_eq!(intercept.curl_status(&["http://a.test:22/"]), 502);
    if let Some(not_allowed) = Conn::try_connect(&intercept.lab.balancer, PROXY_ADDR) {
        not_allowed.recv_to_end();
    }
    built_library();
    let exec = Lab::without_routes();
    let args = ["exec", "--trust=any", ADMIN, "--", "redis-server"];
    let _redis =
        Process::start(&exec.server, BINARY, &args).wait_listening(&[v4([127, 0, 0, 1], 9100)]);
    Scrapes {
        proxy: scrape(&proxy.lab.server),
        intercept: scrape(&intercept.lab.balancer),
        exec: scrape(&exec.server),
    }
}

/// By the name of its samples, on the page of the command and, where the page has a column of types, with its type.
#[test]
fn pages_list_every_exported_metric_with_its_type() {
    let scrapes = scrape_commands();
    let of_proxy = ADMIN_PAGE
        .section("## Metrics of `proxy` and `forward`")
        .text();
    let of_exec = ADMIN_PAGE.section("## Metrics of `exec`").text();
    let (_, of_all) = of_proxy
        .split_once("have these, too:")
        .expect("the metrics of every process");
    for (scrape, pages) in [
        (&scrapes.proxy, vec![of_proxy]),
        (&scrapes.intercept, vec![INTERCEPT_PAGE, CHECK_PAGE, of_all]),
        (&scrapes.exec, vec![of_exec]),
    ] {
        let text = pages.join("\n");
        let types: Vec<_> = types(scrape).collect();
        assert!(types.len() > 10, "{scrape}");
        for (family, kind) in types {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let name = format!("{family}{suffix}");
            let line = text
                .lines()
                .find(|line| words(line).any(|word| word == name));
            let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
            let other = TYPES
                .into_iter()
                .find(|other| *other != kind && line.contains(&format!("| {other} |")));
            assert_eq!(other, None, "{name} is a {kind}");
        }
    }
}

/// Families whose cause no test brings about are not exported, so the sources tell which there are.
#[test]
fn pages_list_every_metric_of_the_sources() {
    let pages = [ADMIN_PAGE.text(), INTERCEPT_PAGE, CHECK_PAGE, AGENT_PAGE].concat();
    let documented = metric_names(&pages);
    let crates = Path::new(REPOSITORY).join("crates");
    let written: BTreeSet<String> = fs::read_dir(crates)
        .expect("the crates")
        .flat_map(|entry| sources(&entry.expect("an entry").path().join("src")))
        .map(|file| fs::read_to_string(file).expect("a source"))
        .flat_map(|source| {
            let source = source.split("#[cfg(test)]").next().unwrap_or_default();
            let mut names = metric_names(source);
            names.retain(|name| source.contains(&format!("\"{name}\"")));
            names
        })
        .collect();
    assert!(written.len() > 40, "{written:?}");
    let missing: Vec<_> = written.difference(&documented).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn rules_dashboard_page_and_top_query_metrics_that_exist() {
    let scrapes = scrape_commands();
    let exported: BTreeSet<String> = [&scrapes.proxy, &scrapes.intercept, &scrapes.exec]
        .into_iter()
        .flat_map(|scrape| types(scrape))
        .map(|(family, _)| family.to_owned())
        .collect();
    let dashboard = packaged("grafana/peername.json");
    serde_json::from_str::<Value>(&dashboard).expect("the dashboard is JSON");
    for (file, text) in [
        ("dashboard", dashboard),
        ("alerts", packaged("prometheus/alerts.yml")),
        ("the page", PAGE.to_owned()),
        ("top", without_imports(&TOP.concat())),
    ] {
        let queried = metric_names(&text);
        assert!(!queried.is_empty(), "{file}");
        let missing: Vec<_> = queried.difference(&exported).collect();
        assert!(missing.is_empty(), "{file}: {missing:?} of {exported:?}");
    }
}

/// Prometheus itself scrapes a proxy that serves a client, with the files that are shipped.
#[test]
fn prometheus_scrapes_with_the_packaged_configuration() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    let scratch = Scratch::new();
    let config = "global:\n  scrape_interval: 200ms\nrule_files: [alerts.yml]\nscrape_configs:\n";
    let config = config.to_owned() + &packaged("prometheus/scrape.yml");
    let config = scratch.write("prometheus.yml", &config);
    scratch.write("alerts.yml", &packaged("prometheus/alerts.yml"));
    let _prometheus = Process::start(
        host,
        "prometheus",
        &[
            &format!("--config.file={config}"),
            &format!("--storage.tsdb.path={}", scratch.path_text("data")),
            "--web.listen-address=127.0.0.1:9090",
        ],
    )
    .wait_listening(&[v4([127, 0, 0, 1], 9090)]);

    let (down, up) = rig.connect_client(v4([203, 0, 113, 7], 56324));
    wait_result(host, "peername_connections_active", "1");
    down.assert_reaches(&up, b"ping");
    drop((down, up));
    wait_result(
        host,
        "sum(peername_connections_total{outcome=\"finished\"})",
        "1",
    );
    wait_result(host, "peername_bytes_total{direction=\"to_upstream\"}", "4");
    wait_result(host, "count(ALERTS) or vector(0)", "0");
}

/// `docs/operate.md`, command by command, on a host with the addresses of the page.
#[test]
fn operate_pages_commands_work() {
    let (balancer, server) = (Host::new(), Host::new());
    balancer.add_veth("eth0", &server, "eth0");
    balancer.add_addresses("eth0", &["192.0.2.10/24"]);
    server.add_addresses("eth0", &["192.0.2.20/24"]);
    let page = Page::new(include_str!("../../../docs/operate.md"));
    let section = page.section("## Turn the admin endpoint on");
    let _proxy = start(&server, &[], &section.command("peername proxy"));
    let metrics = section.command("curl http://127.0.0.1:9100/metrics");
    assert_contains(
        &shell(&server, &metrics),
        &["peername_connections_active 0"],
    );
    let ready = section.command("curl http://127.0.0.1:9100/readyz");
    assert_eq!(shell(&server, &ready), "ready\n");
    for request in page
        .text()
        .split('`')
        .filter(|code| code.starts_with("curl ") && code.contains("127.0.0.1:9100"))
    {
        shell(&server, &request.replace("curl", "curl --fail"));
    }
}

/// HAProxy accepts the page's backend, together with a frontend.
#[test]
fn operate_pages_balancer_is_valid() {
    let page = Page::new(include_str!("../../../docs/operate.md"));
    let scratch = Scratch::new();
    let config = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 9s\n  timeout server 9s\n\
         frontend all\n  bind :80\n  default_backend nodes\n{}",
        page.fenced("haproxy")[0]
    );
    let config = scratch.write("haproxy.cfg", &config);
    Host::new().run("haproxy", &["-c", "-f", &config]);
}

/// The commands of `docs/operate.md` add a job to Debian's own configuration, and keep everything else in it.
#[test]
fn operate_page_extends_an_existing_prometheus_configuration() {
    let page = Page::new(include_str!("../../../docs/operate.md"));
    let commands = page
        .section("## Prometheus")
        .block("cd /usr/share/doc/peername/prometheus");
    let scratch = Scratch::new();
    let debian = fs::read_to_string("/etc/prometheus/prometheus.yml").expect("Debian's");
    scratch.write("prometheus.yml", &debian);
    let commands = commands
        .replace(
            "/usr/share/doc/peername",
            &format!("{REPOSITORY}/packaging"),
        )
        .replace(
            "/etc/prometheus",
            scratch.path_text("").trim_end_matches('/'),
        );
    let printed = shell(&Host::new(), &commands);
    assert_contains(&printed, &["SUCCESS: 1 rule files found", "rules found"]);
    let changed = scratch.read("prometheus.yml");
    let jobs = changed.matches("job_name: ").count();
    assert_eq!(jobs, debian.matches("job_name: ").count() + 1, "{changed}");
    assert!(
        debian.lines().all(|line| changed.contains(line)),
        "{changed}"
    );
}

fn scrape(host: &Host) -> String {
    host.run(
        "curl",
        &["-sS", "--noproxy", "*", "http://127.0.0.1:9100/metrics"],
    )
}

/// The source without its imports, because the names of our own crates begin as metrics do.
fn without_imports(source: &str) -> String {
    source
        .lines()
        .filter(|line| !line.starts_with("use "))
        .collect()
}

/// The metric families of a scrape, with their types.
fn types(scrape: &str) -> impl Iterator<Item = (&str, &str)> {
    scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
}

/// The words of a text, and its names of metrics as words.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// The metric families that a text names.
fn metric_names(text: &str) -> BTreeSet<String> {
    words(text)
        .filter(|word| word.starts_with("peername_") && !word.ends_with('_'))
        .map(|word| {
            ["_total", "_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| word.strip_suffix(suffix))
                .unwrap_or(word)
                .to_owned()
        })
        .collect()
}

/// Waits until Prometheus answers a query with this value.
#[track_caller]
fn wait_result(host: &Host, query: &str, value: &str) {
    wait_for(query, || {
        let url = "http://127.0.0.1:9090/api/v1/query";
        let query = format!("query={query}");
        let args = [
            "-sS",
            "--noproxy",
            "*",
            "--get",
            "--data-urlencode",
            &query,
            url,
        ];
        let answer: Value = serde_json::from_str(&host.run("curl", &args)).ok()?;
        (answer["data"]["result"][0]["value"][1] == value).then_some(())
    });
}
