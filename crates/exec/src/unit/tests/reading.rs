//! How the files of a unit are found and read.

use super::*;

/// The names among `names` whose drop-ins are read for a unit, in the order of reading.
fn names_with_drop_ins(file: &str, unit: &str, names: &[&str]) -> Vec<String> {
    let mut root = Root::new().with_service("lib", file, "");
    for name in names {
        let drop_in = format!("{name}.d/{name}.conf");
        root = root.with_service("lib", &drop_in, &format!("Environment={name}"));
    }
    let unit = root.read(unit).unwrap();
    unit.list("Environment")
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[test]
fn drop_ins_are_read_in_the_order_of_their_names() {
    let root = Root::new()
        .with_service("lib", "a-b@.service", "ExecStart=/bin/a\nUser=a")
        .with_service("etc", "a-.service.d/1.conf", "ExecStart=\nExecStart=/bin/1")
        .with_service(
            "run",
            "a-b@.service.d/2.conf",
            "ExecStart=\nExecStart=/bin/2",
        )
        .with_service("lib", "a-b@c.service.d/1.conf", "User=b")
        .with_service("etc", "a-b@.service.d/3.conf", "Group=template")
        .with_service("etc", "a-b@c.service.d/3.conf", "Group=instance")
        .with_service("etc", "a-b@c.service.d/peername.conf", "User=c");
    let unit = root.read("a-b@c.service").unwrap();
    // The 1.conf in /etc replaces the one in /lib, though that is the instance's own.
    assert_eq!(unit.last("User"), Some("a"));
    assert_eq!(unit.last("Group"), Some("instance"));
    assert_eq!(unit.list("ExecStart"), ["/bin/2"]);
    let template = root.read("a-b@.service").unwrap();
    assert_eq!(template.last("User"), Some("a"));
    let root = root.with_service(
        "etc",
        "a-b@c.service.d/z.conf",
        "ExecStart=\nExecStart=/bin/z",
    );
    let refused = root.refusal("a-b@c.service");
    assert!(refused.contains("z.conf"), "{refused}");
}

#[test]
fn prefixes_of_a_name_end_at_its_dashes() {
    for (file, unit, read, others) in [
        (
            "php8.2-fpm.service",
            "php8.2-fpm.service",
            &["php8.2-.service", "php8.2-fpm.service"][..],
            &["php8-.service", "-.service"][..],
        ),
        (
            "a-b@.service",
            "a-b@c-d.service",
            &[
                "a-.service",
                "a-@.service",
                "a-@c-d.service",
                "a-b@.service",
                "a-b@c-d.service",
                "service",
            ][..],
            &["a-b@c-.service"][..],
        ),
        (
            "a-b.socket",
            "a-b.socket",
            &["a-.socket", "socket"][..],
            &["a-.service", "service"][..],
        ),
    ] {
        let names = [read, others].concat();
        assert_eq!(names_with_drop_ins(file, unit, &names), read);
    }
}

#[test]
fn alias_names_its_unit_and_has_drop_ins_of_lower_precedence() {
    let root = Root::new()
        .with_service("lib", "ssh.service", "ExecStart=/usr/sbin/sshd -D")
        .with_link(
            "etc/systemd/system/sshd.service",
            "../../../lib/systemd/system/ssh.service",
        )
        .with_service("lib", "ssh.service.d/1.conf", "User=own")
        .with_service("etc", "sshd.service.d/1.conf", "User=alias")
        .with_service("lib", "sshd.service.d/2.conf", "Group=alias")
        .with_service("etc", "service.d/2.conf", "Group=type");
    for name in ["ssh.service", "sshd.service"] {
        let unit = root.read(name).unwrap();
        assert_eq!(unit.name, "ssh.service");
        assert_eq!(unit.last("User"), Some("own"));
        assert_eq!(unit.last("Group"), Some("alias"));
    }
}

#[test]
fn too_long_a_chain_of_aliases_leads_to_no_unit() {
    let mut root = Root::new().with_service("lib", "0.service", "ExecStart=/bin/z");
    for number in 1..=8 {
        let link = format!("lib/systemd/system/{number}.service");
        root = root.with_link(&link, &format!("{}.service", number - 1));
    }
    assert!(root.read("7.service").is_ok());
    assert!(root.read("8.service").is_err());
}

#[test]
fn alias_of_a_template_is_an_alias_of_its_instances() {
    let root = Root::new()
        .with_service("lib", "al@.service", "User=al")
        .with_link("lib/systemd/system/other@.service", "al@.service")
        .with_service("lib", "other@i.service.d/1.conf", "Group=i")
        .with_service("lib", "other@own.service", "User=own")
        .with_service("lib", "other@own.service.d/1.conf", "Group=own");
    for name in ["other@i.service", "al@i.service"] {
        let unit = root.read(name).unwrap();
        assert_eq!(unit.name, "al@i.service");
        assert_eq!(unit.last("User"), Some("al"));
        assert_eq!(unit.last("Group"), Some("i"));
    }
    let own = root.read("other@own.service").unwrap();
    assert_eq!(own.name, "other@own.service");
    assert_eq!(root.read("al@own.service").unwrap().last("Group"), None);
}

#[test]
fn link_to_a_file_outside_of_the_search_path_is_no_alias() {
    let root = Root::new()
        .with("opt/b.service", "[Service]\nUser=b\n")
        .with_link("etc/systemd/system/a.service", "../../../opt/b.service");
    let unit = root.read("a.service").unwrap();
    assert_eq!(unit.name, "a.service");
    assert_eq!(unit.last("User"), Some("b"));
}

#[test]
fn unit_of_a_late_generator_is_found() {
    let root = Root::new().with(
        "run/systemd/generator.late/a.service",
        "[Service]\nUser=a\n",
    );
    assert_eq!(root.read("a.service").unwrap().last("User"), Some("a"));
}

#[test]
fn empty_file_masks_a_unit_as_dev_null_does() {
    let root = Root::new()
        .with("etc/systemd/system/empty.service", "")
        .with_service("lib", "empty.service", "User=a")
        .with_link("etc/systemd/system/null.service", "/dev/null");
    for (name, reason) in [
        ("null", "is masked"),
        ("empty", "is masked"),
        ("absent", "no such unit"),
    ] {
        let refused = root.refusal(&format!("{name}.service"));
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn unescaped_backslash_at_the_end_continues_a_line() {
    for (end, command, user) in [
        (r"\", "/bin/a User=b", None),
        (r"\\", r"/bin/a\\", Some("b")),
        (r"\\\", r"/bin/a\\ User=b", None),
        // The blank is kept: in peername's drop-in the backslash would else join the next line.
        (r"\ ", r"/bin/a\ ", Some("b")),
    ] {
        let text = format!("[Service]\nExecStart=/bin/a{end}\nUser=b\n");
        let root = Root::new().with("lib/systemd/system/a.service", &text);
        let unit = root.read("a.service").unwrap();
        assert_eq!(unit.last("ExecStart"), Some(command), "{end:?}");
        assert_eq!(unit.last("User"), user, "{end:?}");
    }
}

#[test]
fn comment_need_not_be_utf_8() {
    let unit = "lib/systemd/system/a.service";
    let root = Root::new().with(unit, "");
    fs::write(root.0.path().join(unit), b"# caf\xe9\n[Service]\nUser=a\n").unwrap();
    assert_eq!(root.read("a.service").unwrap().last("User"), Some("a"));
}

#[test]
fn directory_or_dangling_link_hides_drop_ins_of_its_name() {
    let drop_ins = "etc/systemd/system/a.service.d";
    let replaced = "lib/systemd/system/a.service.d";
    let text = "[Service]\nUser=replaced\n";
    let root = Root::new()
        .with_service("lib", "a.service", "User=a")
        .with("lib/systemd/system/service.d", "a file")
        .with(&format!("{drop_ins}/directory.conf/file"), "")
        .with_link(&format!("{drop_ins}/link.conf"), "absent")
        .with(&format!("{replaced}/directory.conf"), text)
        .with(&format!("{replaced}/link.conf"), text);
    assert_eq!(root.read("a.service").unwrap().last("User"), Some("a"));
}

#[test]
fn booleans_are_read_as_systemd_does() {
    for text in ["1", "yes", "Y", "true", "T", "On"] {
        assert_eq!(parse_boolean(text), Some(true), "{text}");
    }
    for text in ["0", "no", "N", "False", "f", "off"] {
        assert_eq!(parse_boolean(text), Some(false), "{text}");
    }
    assert_eq!(parse_boolean("cgroup"), None);
}
