//! Drop-ins for units of different kinds, whose files are below a root of the test.

mod reading;

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::drop_in::*;
use super::service_unit::*;

/// The files of units below a directory that is removed at the end.
struct Root(TempDir);

impl Root {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file.
    fn with(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Writes a file of a unit, or of a drop-in: these lines in the section `[Service]`.
    fn with_service(self, directory: &str, file: &str, lines: &str) -> Self {
        self.with(
            &format!("{directory}/systemd/system/{file}"),
            &format!("[Service]\n{lines}\n"),
        )
    }

    /// Makes a symbolic link.
    fn with_link(self, path: &str, target: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    fn read(&self, name: &str) -> anyhow::Result<ServiceUnit> {
        Ok(ServiceUnit::read(self.0.path(), name, FILE_NAME)?)
    }

    fn drop_in(&self, name: &str) -> anyhow::Result<DropIn> {
        let launcher = Launcher {
            binary: "/usr/bin/peername".into(),
            library: Some("/usr/lib/peername/libpeername.so".into()),
            options: vec!["--trust=192.0.2.0/24".to_owned()],
        };
        Ok(DropIn::for_unit(&self.read(name)?, &launcher)?)
    }

    fn refusal(&self, name: &str) -> String {
        self.drop_in(name).unwrap_err().to_string()
    }
}

/// The drop-in of a unit whose section `[Service]` has these lines.
fn written_for(lines: &str) -> anyhow::Result<String> {
    Root::new()
        .with_service("lib", "a.service", lines)
        .drop_in("a.service")
        .map(|drop_in| drop_in.to_string())
}

fn refusal(lines: &str) -> String {
    written_for(lines).unwrap_err().to_string()
}

/// The assignments of a drop-in beside `ExecStart=`.
fn sandbox(lines: &str) -> Vec<String> {
    let text = written_for(&format!("ExecStart=/bin/a\n{lines}")).unwrap();
    text.lines()
        .filter(|line| !line.starts_with(['#', '[']) && !line.starts_with("ExecStart="))
        .map(str::to_owned)
        .collect()
}

#[test]
fn command_keeps_prefixes_quotes_and_specifiers() {
    let launcher = "/usr/bin/peername exec --trust=192.0.2.0/24 --";
    for (command, expected) in [
        ("/bin/a -D $OPTS", format!("{launcher} /bin/a -D $OPTS")),
        ("-/bin/a %i 'b c'", format!("-{launcher} /bin/a %i 'b c'")),
        ("!!:/bin/a ${B}", format!("!!:{launcher} /bin/a ${{B}}")),
        ("/bin/a \\\n  # why\n  -D", format!("{launcher} /bin/a  -D")),
    ] {
        let text = written_for(&format!("ExecStart={command}\n")).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!(last, format!("ExecStart={expected}"));
        let replaced = command.replace("\\\n  # why\n ", "");
        assert!(
            text.contains(&format!("\n# ExecStart={replaced}\n")),
            "{text}"
        );
        assert!(has_mark(&text) && has_mark(&format!("# /etc/x.conf\n{text}")));
        assert!(text.contains("\nExecStart=\n"), "{text}");
        assert!(
            text.contains("\n# The server itself has to listen where "),
            "{text}"
        );
    }
}

#[test]
fn options_are_quoted_for_systemd() {
    for (word, with_variables, without) in [
        ("--ports=80,443", "--ports=80,443", "--ports=80,443"),
        ("--a=b c", "\"--a=b c\"", "\"--a=b c\""),
        ("--a=$b%c", "--a=$$b%%c", "--a=$b%%c"),
        ("--a=\"\\", "\"--a=\\\"\\\\\"", "\"--a=\\\"\\\\\""),
    ] {
        assert_eq!(quote_word(word, true), with_variables);
        assert_eq!(quote_word(word, false), without);
    }
}

#[test]
fn settings_that_do_not_concern_exec_add_nothing() {
    let lines = "PrivateUsers=true\nNoNewPrivileges=true\nMemoryDenyWriteExecute=true\nProtectProc=invisible\n\
                 SystemCallArchitectures=native\nRestrictNamespaces=true\nProtectSystem=strict\n";
    assert!(sandbox(lines).is_empty());
}

/// The unit has the settings of Debian's redis-server.service.
#[test]
fn sandbox_gets_the_calls_families_and_paths_that_it_denies() {
    let lines = "User=redis\nRestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\nSystemCallFilter=@system-service\n\
                 SystemCallFilter=~ @privileged @resources\nNoExecPaths=/\n\
                 ExecPaths=/usr/bin/redis-server /usr/lib /lib\n";
    let expected = [
        "SystemCallFilter=seccomp pidfd_getfd",
        "RestrictAddressFamilies=AF_NETLINK",
        "ExecPaths=/usr/bin/peername",
    ];
    assert_eq!(sandbox(lines), expected);
}

#[test]
fn wakeup_connections_need_an_internet_family() {
    for (families, expected) in [
        ("AF_UNIX", "AF_INET AF_INET6 AF_NETLINK"),
        ("none", "AF_INET AF_INET6 AF_NETLINK"),
        ("AF_INET", "AF_NETLINK"),
        ("~AF_NETLINK", "AF_NETLINK"),
    ] {
        let lines = format!("RestrictAddressFamilies={families}\n");
        let expected = format!("RestrictAddressFamilies={expected}");
        assert_eq!(sandbox(&lines), [expected]);
    }
}

#[test]
fn last_value_that_names_a_call_decides() {
    for (lines, expected) in [
        ("SystemCallFilter=@known\n", &[][..]),
        ("SystemCallFilter=\"@known\"\n", &[][..]),
        ("SystemCallFilter=~@clock\n", &[][..]),
        (
            "SystemCallFilter=~@debug:EPERM\n",
            &["SystemCallFilter=pidfd_getfd"][..],
        ),
        (
            "SystemCallFilter=~@debug\nSystemCallFilter=pidfd_getfd\n",
            &[][..],
        ),
        ("SystemCallFilter=@basic-io\nSystemCallFilter=\n", &[][..]),
        (
            "SystemCallFilter=@known\nSystemCallFilter=~@ipc\n",
            &["SystemCallFilter=process_vm_readv process_vm_writev memfd_create"][..],
        ),
        (
            "SystemCallFilter=@process @ipc @debug @sandbox @privileged\n",
            &["SystemCallFilter=flock madvise"][..],
        ),
    ] {
        assert_eq!(sandbox(lines), expected, "{lines}");
    }
}

#[test]
fn drop_in_of_an_older_unit_lacks_what_is_new() {
    let root = Root::new().with_service("lib", "a.service", "ExecStart=/bin/a");
    let older = root.drop_in("a.service").unwrap();
    assert!(older.lines_missing_in(&older.to_string()).is_empty());
    let changed = "ExecStart=/bin/a -n\nRestrictAddressFamilies=AF_INET AF_INET6";
    let root = root.with_service("lib", "a.service", changed);
    let newer = root.drop_in("a.service").unwrap();
    assert_eq!(
        newer.lines_missing_in(&older.to_string()),
        [
            "ExecStart=/usr/bin/peername exec --trust=192.0.2.0/24 -- /bin/a -n",
            "RestrictAddressFamilies=AF_NETLINK"
        ]
    );
}

#[test]
fn options_of_a_drop_in_are_compared_if_any_are_given() {
    let root = Root::new().with_service("lib", "a.service", "ExecStart=/bin/a");
    let drop_in = |options: &[&str]| {
        let launcher = Launcher {
            binary: "/usr/bin/peername".into(),
            library: None,
            options: options.iter().copied().map(str::to_owned).collect(),
        };
        DropIn::for_unit(&root.read("a.service").unwrap(), &launcher).unwrap()
    };
    let existing = drop_in(&["--trust=192.0.2.1", "--dst"]).to_string();
    for same in [&[][..], &["--dst", "--trust=192.0.2.1"]] {
        assert!(drop_in(same).lines_missing_in(&existing).is_empty());
    }
    let other = drop_in(&["--trust=192.0.2.2"]);
    assert_eq!(
        other.lines_missing_in(&existing),
        ["ExecStart=/usr/bin/peername exec --trust=192.0.2.2 -- /bin/a"]
    );
}

#[test]
fn table_of_clients_stays_writable() {
    let expected = ["ReadWritePaths=/dev/shm"];
    assert_eq!(sandbox("ReadOnlyPaths=/\n"), expected);
    let lines = "ReadOnlyPaths=/\nReadWritePaths=-/dev\n";
    assert!(sandbox(lines).is_empty());
    let quoted = "ReadOnlyPaths=\"/\" /usr\nReadWritePaths='/srv'\n";
    assert_eq!(sandbox(quoted), expected);
}

#[test]
fn command_without_the_sandbox_gets_no_other_setting() {
    let text = written_for("ExecStart=+/bin/a\nRestrictAddressFamilies=none\n").unwrap();
    assert!(!text.contains("AF_"), "{text}");
}

#[test]
fn supervisor_of_root_drops_its_capabilities() {
    let lines = "SystemCallFilter=@system-service @debug @sandbox\nSystemCallFilter=~@privileged\n";
    assert_eq!(sandbox(lines), ["SystemCallFilter=capset"]);
    for more in ["User=a\n", "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\n"] {
        assert!(sandbox(&format!("{lines}{more}")).is_empty(), "{more}");
    }
}

#[test]
fn forking_server_without_a_pid_file_hides_its_main_process() {
    for (lines, hides) in [
        ("Type=forking\n", true),
        ("Type=forking\nPIDFile=/run/a.pid\n", false),
        ("Type=forking\nGuessMainPID=no\n", false),
        ("Type=notify\n", false),
    ] {
        let root = Root::new().with_service("lib", "a.service", lines);
        assert_eq!(
            root.read("a.service").unwrap().hides_main_process(),
            hides,
            "{lines}"
        );
    }
}

#[test]
fn servers_that_exec_does_not_reach_are_refused() {
    for (lines, reason) in [
        (
            "Type=oneshot\nExecStart=/bin/true\n",
            "systemctl list-units 'a@*'",
        ),
        ("StandardInput=socket\nExecStart=-/bin/a -i\n", "Accept=yes"),
        (
            "RootDirectory=/srv\nExecStart=/bin/a\n",
            "RootDirectory=/srv",
        ),
        ("ExecStart=@/bin/a b\n", "'@'"),
        ("ExecStart=/bin/a\nExecStart=\n", "no ExecStart="),
        (
            "ExecStart=/usr/bin/peername exec -- /bin/a\n",
            "a.service: its ExecStart=",
        ),
        (
            "ExecStart=\"/usr/bin/peername\" exec -- /bin/a\n",
            "a.service: its ExecStart=",
        ),
        (
            "ExecStart=/usr/bin/env -i A=b peername exec -- /bin/a\n",
            "a.service: its ExecStart=",
        ),
    ] {
        let refused = refusal(lines);
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn units_of_sockets_that_exec_can_not_serve_are_refused() {
    for (name, unit, lines, reason) in [
        ("a@.service", "a@1.service", "", Some("Accept=yes")),
        ("d@.service", "d@1.service", "", None),
        ("b.service", "b.service", "", None),
        ("b.service", "b.service", "PrivateNetwork=no", None),
        (
            "b.service",
            "b.service",
            "PrivateNetwork=yes",
            Some("PrivateNetwork=yes"),
        ),
        ("c.service", "c.service", "PrivateNetwork=yes", None),
        (
            "c.service",
            "c.service",
            "PrivateNetwork=on\nSockets=b.socket",
            Some("PrivateNetwork=yes"),
        ),
    ] {
        let root = Root::new()
            .with_service("lib", name, lines)
            .with("lib/systemd/system/a.socket", "[Socket]\nAccept=yes\n")
            .with("lib/systemd/system/b.socket", "[Socket]\nListenStream=80\n")
            .with("lib/systemd/system/d.socket", "[Socket]\nAccept=no\n");
        let read = root.read(unit).unwrap();
        let refused = refuse_socket_unit(root.0.path(), &read).err();
        let refused = refused.map(|error| error.to_string());
        assert_eq!(
            refused.is_some(),
            reason.is_some(),
            "{unit} {lines}: {refused:?}"
        );
        assert!(
            refused
                .unwrap_or_default()
                .contains(reason.unwrap_or_default())
        );
    }
}

/// systemd would read the deny list after the drop-in's line, and take that line for a list of all that is allowed.
#[test]
fn later_drop_ins_that_undo_what_the_drop_in_adds_are_refused() {
    let root = Root::new()
        .with_service("lib", "a.service", "ExecStart=/bin/a")
        .with_service(
            "etc",
            "a.service.d/local.conf",
            "RestrictAddressFamilies=AF_INET",
        )
        .with_service(
            "etc",
            "a.service.d/sandbox.conf",
            "NoNewPrivileges=yes\nReadOnlyPaths=/\nReadWritePaths=/var/lib/a",
        );
    root.drop_in("a.service").unwrap();
    for (setting, key) in [
        ("SystemCallFilter=~@debug", "SystemCallFilter"),
        (
            "RestrictAddressFamilies=\nRestrictAddressFamilies=AF_INET AF_UNIX",
            "RestrictAddressFamilies",
        ),
        ("ReadOnlyPaths=/\nReadWritePaths=", "ReadWritePaths"),
        ("ExecStart=\nExecStart=/bin/b", "ExecStart"),
    ] {
        let later = Root::new()
            .with_service("lib", "a.service", "ExecStart=/bin/a")
            .with_service("etc", "a.service.d/sandbox.conf", setting);
        let refused = later.refusal("a.service");
        let expected = format!("sandbox.conf: it sets {key}=, and systemd reads it after");
        assert!(refused.contains(&expected), "{refused}");
    }
}
