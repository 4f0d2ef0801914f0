//! docs/service.md: once installed, each unit's own commands serve, and uninstalling leaves only the configuration.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{BALANCER_V4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, assert_contains, assert_fails, stderr_text,
};
use crate::harness::page::Page;
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;
use crate::harness::rig::intercept::InterceptLab;
use crate::harness::rig::proxy::connect_fresh_client;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs the page's `make` command with a directory of the test's own instead of `/`.
fn make(target: &str, into: &Scratch) {
    // Builds the library beside the program, where `make release` puts it.
    built_library();
    let built = Path::new(BINARY).parent().expect("a directory");
    let output = Command::new("make")
        .current_dir(REPOSITORY)
        .args([target, "PREFIX=/usr"])
        .arg(format!("RELEASE={}", built.display()))
        .arg(format!("DESTDIR={}", into.path_text("root")))
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make");
    let printed = stderr_text(&output);
    assert!(output.status.success(), "{printed}");
}

fn list_files(below: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(below).expect("a directory") {
        let entry = entry.expect("an entry").path();
        if entry.is_dir() && !entry.is_symlink() {
            all.extend(list_files(&entry));
        } else {
            all.push(entry.display().to_string());
        }
    }
    all
}

#[test]
fn install_without_a_build_names_both_builds() {
    let output = Command::new("make")
        .current_dir(REPOSITORY)
        .args(["install", "RELEASE=/nonexistent"])
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make");
    let both = ["make release first", "/release\n"];
    assert_fails(&output, 2, &both);
}

#[test]
fn service_page_works_as_written() {
    let page = include_str!("../../../docs/service.md");
    for line in [
        "make release",
        "sudo make install",
        "peername config check /etc/peername/proxy.toml",
    ] {
        assert!(page.lines().any(|words| words.trim() == line), "{line}");
    }
    let (lab, scratch) = (Lab::new(), Scratch::new());
    make("install", &scratch);
    let root = scratch.path_text("root");
    let help = lab.server.run(BINARY, &["--help"]);
    assert_contains(&help, &["docs/config.md", "/usr/share/doc/peername,"]);
    for installed in ["doc/peername/docs/config.md", "man/man1/peername.1"] {
        assert!(fs::exists(format!("{root}/usr/share/{installed}")).is_ok_and(|exists| exists));
    }
    // The step that the page leaves to its reader: the balancers' addresses, here the lab's.
    let list = format!("{root}/etc/peername/allowed-subnets.txt");
    fs::write(&list, "10.81.0.2\n").expect("the list");
    let unit = Unit::installed(&scratch, "peername.service");
    unit.edit("proxy.toml", &[("@/etc", &format!("@{root}/etc"))]);
    // The first ExecReload= is `config check`.
    unit.run(&lab.server, unit.value("ExecReload"));
    let listen = v4([10, 81, 0, 1], 8022);
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 22));
    let proxy = unit.start(&lab.server).wait_listening(&[listen]);
    let _open = connect_fresh_client(&lab, listen, &backend);
    Conn::assert_refused(&lab.server, listen);
    drop(proxy);

    make("uninstall", &scratch);
    let left = list_files(Path::new(&root));
    // The five files of packaging/examples that the Makefile installs as configuration.
    assert!(
        left.len() == 5 && left.iter().all(|path| path.contains("/etc/peername/")),
        "{left:?}"
    );
    // Installing again does not overwrite the operator's changes.
    make("install", &scratch);
    assert_eq!(fs::read_to_string(&list).expect("the list"), "10.81.0.2\n");
}

/// The list of balancers is the one that the package installs.
#[test]
fn example_of_the_agents_policies_is_valid() {
    let scratch = Scratch::new();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples");
    let text = include_str!("../../../packaging/examples/agent.toml");
    let file = scratch.write("agent.toml", &text.replace("/etc/peername", examples));
    Host::new().run(BINARY, &["config", "check", &file]);
}

/// The page's configuration for a secret is valid, with the file where systemd would put it.
#[test]
fn service_pages_credential_is_a_secret_of_intercept() {
    let page = Page::new(include_str!("../../../docs/service.md"));
    let section = page.section("## Secrets: `LoadCredential=`");
    let scratch = Scratch::new();
    let [unit, file] = ["ini", "toml"].map(|language| section.fenced(language)[0]);
    let name = unit
        .lines()
        .find_map(|line| line.strip_prefix("LoadCredential=")?.split(':').next())
        .expect("a credential");
    // No command of ExecReload= may read a credential, as the unit's `config check` would.
    assert_contains(unit, &["\nExecReload=\nExecReload=/bin/kill"]);
    let credentials = "/run/credentials/peername-intercept.service";
    assert!(file.contains(&format!("@{credentials}/{name}\"")), "{file}");
    scratch.write(name, "Bearer s3cret\n");
    let here = file.replace(credentials, scratch.path_text("").trim_end_matches('/'));
    let file = scratch.write("intercept.toml", &here);
    Host::new().run(BINARY, &["config", "check", &file]);
}

/// The example listens on port 80, for which the unit has its only capability.
#[test]
fn forward_unit_sends_the_client() {
    let (lab, scratch) = (Lab::without_routes(), Scratch::new());
    make("install", &scratch);
    let unit = Unit::installed(&scratch, "peername-forward.service");
    unit.edit("forward.toml", &[("192.0.2.20:8080", "10.81.0.1:8080")]);
    unit.run(&lab.balancer, unit.value("ExecReload"));
    let backend = Backend::listen(&lab.server, v4([10, 81, 0, 1], 8080));
    let listen = v4([203, 0, 113, 1], 80);
    let forward = unit.start(&lab.balancer).wait_listening(&[listen]);
    let client = Conn::connect(&lab.client, listen);
    let up = backend.accept();
    assert_eq!(up.peer_addr().ip(), BALANCER_V4);
    let header = header_bytes::v2(client.local_addr(), listen, &[]);
    assert_eq!(up.recv(header.len()), header);
    assert_eq!(forward.status_field("CapEff"), "0000000000000000");
}

/// The unit creates its authority at the first start and keeps it at the next one.
#[test]
fn intercept_unit_creates_its_authority_and_opens_tls() {
    let site = InterceptLab::new();
    let (lab, scratch) = (&site.lab, &site.scratch);
    make("install", scratch);
    let unit = Unit::installed(scratch, "peername-intercept.service");
    let reachable = format!(
        "allow-destination = [\"10.81.0.0/24\"]\nextra-ca = [\"{}\"]\n#",
        scratch.path_text("root.pem")
    );
    unit.edit("intercept.toml", &[("check =", &reachable)]);
    unit.run(&lab.balancer, unit.value("ExecStartPre"));
    let authority = || fs::read(scratch.path("state/ca/authority.pem")).expect("the authority");
    let created = authority();
    unit.run(&lab.balancer, unit.value("ExecStartPre"));
    assert_eq!(created, authority());
    unit.run(&lab.balancer, unit.value("ExecReload"));
    let _origin = site.start_nginx();
    let listen = v4([127, 0, 0, 1], 8080);
    let intercept = unit.start(&lab.balancer).wait_listening(&[listen]);
    let exported = unit.run(&lab.balancer, "/usr/bin/peername ca export");
    let trusted = scratch.write("trusted.pem", &exported);
    let proxy = format!("http://{listen}");
    let curl = [
        "-sS",
        "--noproxy",
        "",
        "--proxy",
        &proxy,
        "--cacert",
        &trusted,
    ];
    let url = "https://10.81.0.1/echo";
    let body = lab.balancer.run("curl", &[&curl[..], &[url]].concat());
    assert!(body.starts_with("GET 10.81.0.1 "), "{body}");
    assert_eq!(intercept.status_field("CapBnd"), "0000000000000000");
    drop(intercept);

    assert_contains(
        &unit.text,
        &["for ports\n# below 1024 CAP_NET_BIND_SERVICE"],
    );
    unit.edit("intercept.toml", &[("127.0.0.1:8080", "127.0.0.1:443")]);
    let added =
        "AmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n";
    let intercept = unit
        .with_drop_in(added)
        .start(&lab.balancer)
        .wait_listening(&[v4([127, 0, 0, 1], 443)]);
    assert_eq!(intercept.status_field("CapEff"), "0000000000000000");
}

/// An ordinary user with exactly the documented capabilities loads the eBPF program.
#[test]
fn udp_pages_drop_in_starts_the_kernel_data_path() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    make("install", &scratch);
    let root = scratch.path_text("root");
    let list = format!("{root}/etc/peername/allowed-subnets.txt");
    fs::write(list, "10.81.0.2\n").expect("the list");
    let page = Page::new(include_str!("../../../docs/udp.md"));
    let drop_in = page.section("## Kernel offload").block("[Service]");
    // What is left of the drop-in is not applied here.
    assert_contains(&drop_in, &["ProtectKernelTunables=no", "ProcSubset=all"]);
    let unit = Unit::installed(&scratch, "peername.service").with_drop_in(&drop_in);
    unit.edit(
        "proxy.toml",
        &[
            ("@/etc", &format!("@{root}/etc")),
            ("drain =", "data-path = \"kernel\"\ndrain ="),
            ("idle-timeout = \"2h\"", "protocol = \"udp\""),
        ],
    );
    let mut proxy = unit.start(&lab.server);
    proxy.wait_logged("steady UDP sessions are left to the kernel");
    proxy.signal(Signal::TERM);
    proxy.wait_success(Duration::from_secs(5));

    // The drop-in suits the template, too: its filter is the same.
    let instance = format!("{root}/usr/lib/systemd/system/peername@.service");
    let instance = fs::read_to_string(instance).expect("the unit");
    let filters = |text: &str| text.matches("\nSystemCallFilter=").count();
    assert_eq!(filters(&instance) + 1, filters(&unit.text));
    for line in instance
        .lines()
        .filter(|line| line.starts_with("SystemCallFilter="))
    {
        assert_contains(&unit.text, &[line]);
    }
}

/// A unit that `make install` has installed.
struct Unit<'a> {
    text: String,
    scratch: &'a Scratch,
}

impl<'a> Unit<'a> {
    fn installed(scratch: &'a Scratch, name: &str) -> Self {
        let root = scratch.path_text("root");
        let path = format!("{root}/usr/lib/systemd/system/{name}");
        let text = fs::read_to_string(path).expect("the unit");
        let unit = Self { text, scratch };
        let page = unit.value("Documentation").strip_prefix("file://");
        let page = format!("{root}{}", page.expect("a file"));
        assert!(Path::new(&page).exists(), "{page}");
        // systemd's part: a directory for this user alone, and files that any user may read.
        Host::new().run("chmod", &["-R", "a+rX", &scratch.path_text("")]);
        let state = scratch.path("state");
        let mut private = DirBuilder::new();
        private.mode(0o700).create(&state).expect("a directory");
        chown(state, Some(USER), Some(USER)).expect("chown");
        unit
    }

    /// Adds the lines of a drop-in.
    fn with_drop_in(self, lines: &str) -> Self {
        let text = format!("{}\n{lines}", self.text);
        Self { text, ..self }
    }

    /// Replaces each text by another one in the configuration that was installed.
    fn edit(&self, file: &str, replacements: &[(&str, &str)]) {
        let path = self.scratch.path(&format!("root/etc/peername/{file}"));
        let mut text = fs::read_to_string(&path).expect("the example");
        for (from, to) in replacements {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        fs::write(path, text).expect("the example");
    }

    fn value(&self, key: &str) -> &str {
        self.text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_else(|| panic!("no {key}"))
    }

    /// The words of a list, to which a drop-in adds.
    fn list(&self, key: &str) -> Vec<&str> {
        self.text
            .lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .flat_map(str::split_whitespace)
            .collect()
    }

    /// Runs a command line to its end, as the unit's user with its capabilities, and returns its output.
    fn run(&self, host: &Host, command_line: &str) -> String {
        let words = [self.sandbox(), self.below_root(command_line)].concat();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        host.run(words[0], &words[1..])
    }

    /// Starts the unit's `ExecStart` as [`run`](Self::run) does it.
    fn start(&self, host: &Host) -> Process {
        let (sandbox, command) = (self.sandbox(), self.below_root(self.value("ExecStart")));
        let [sandbox, command] =
            [&sandbox, &command].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
        Process::start_through(host, &sandbox, command[0], &command[1..])
    }

    /// The words of a command line, with its paths below the test's root.
    fn below_root(&self, command_line: &str) -> Vec<String> {
        let root = self.scratch.path_text("root");
        command_line
            .split(' ')
            .map(|word| {
                if word.starts_with('/') {
                    format!("{root}{word}")
                } else {
                    word.to_owned()
                }
            })
            .collect()
    }

    /// The words of a command that runs another one as the unit's user, with the unit's capabilities and under its filter of
    /// system calls.
    fn sandbox(&self) -> Vec<String> {
        let capabilities = self.list("AmbientCapabilities");
        let added: String = capabilities
            .iter()
            .filter_map(|capability| capability.strip_prefix("CAP_"))
            .map(|name| format!(",+{}", name.to_lowercase()))
            .collect();
        assert_eq!(capabilities, self.list("CapabilityBoundingSet"));
        let words = [
            "env",
            &format!("STATE_DIRECTORY={}", self.scratch.path_text("state")),
            "setpriv",
            &format!("--reuid={USER}"),
            &format!("--regid={USER}"),
            "--clear-groups",
            "--no-new-privs",
            &format!("--bounding-set=-all{added}"),
            &format!("--inh-caps=-all{added}"),
            &format!("--ambient-caps=-all{added}"),
            "/usr/bin/python3",
            &self.scratch.write("unit_filter.py", UNIT_FILTER),
            &self.scratch.write("unit.service", &self.text),
        ];
        words.map(str::to_owned).to_vec()
    }
}

const UNIT_FILTER: &str = include_str!("installed/unit_filter.py");
/// The user that systemd would choose.
const USER: u32 = 65534;
