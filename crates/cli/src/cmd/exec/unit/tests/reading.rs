//! Which files of a unit are read, and how.

use super::*;

/// The names by which a unit has drop-ins, of those given, in their order.
fn names_of_drop_ins(test: &str, file: &str, unit: &str, names: &[&str]) -> Vec<String> {
    let directory = "lib/systemd/system";
    let mut root = Root::new(test).with(&format!("{directory}/{file}"), "[Service]\n");
    for name in names {
        root = root.with(
            &format!("{directory}/{name}.d/{name}.conf"),
            &format!("[Service]\nEnvironment={name}\n"),
        );
    }
    let unit = root.read(unit).unwrap();
    let read = unit.list("Environment");
    read.into_iter().map(str::to_owned).collect()
}

#[test]
fn drop_ins_are_read_in_the_order_of_their_names() {
    let root = Root::new("order")
        .with(
            "lib/systemd/system/a-b@.service",
            "[Service]\nExecStart=/bin/a\nUser=a\n",
        )
        .with(
            "etc/systemd/system/a-.service.d/1.conf",
            "[Service]\nExecStart=\nExecStart=/bin/1\n",
        )
        .with(
            "run/systemd/system/a-b@.service.d/2.conf",
            "[Service]\nExecStart=\nExecStart=/bin/2\n",
        )
        .with(
            "lib/systemd/system/a-b@c.service.d/1.conf",
            "[Service]\nUser=b\n",
        )
        .with(
            "etc/systemd/system/a-b@.service.d/3.conf",
            "[Service]\nGroup=template\n",
        )
        .with(
            "etc/systemd/system/a-b@c.service.d/3.conf",
            "[Service]\nGroup=instance\n",
        )
        .with(
            "etc/systemd/system/a-b@c.service.d/peername.conf",
            "[Service]\nUser=c\n",
        );
    let unit = root.read("a-b@c.service").unwrap();
    // The 1.conf in /etc replaces the one in /lib, though that is the instance's own.
    assert_eq!(unit.last("User"), Some("a"));
    assert_eq!(unit.last("Group"), Some("instance"));
    assert_eq!(unit.list("ExecStart"), ["/bin/2"]);
    let template = root.read("a-b@.service").unwrap();
    assert_eq!(template.last("User"), Some("a"));
    let root = root.with(
        "etc/systemd/system/a-b@c.service.d/z.conf",
        "[Service]\nExecStart=\nExecStart=/bin/z\n",
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
        assert_eq!(names_of_drop_ins("prefixes", file, unit, &names), read);
    }
}

#[test]
fn alias_names_its_unit_and_has_drop_ins_of_less_weight() {
    let root = Root::new("alias")
        .with(
            "lib/systemd/system/ssh.service",
            "[Service]\nExecStart=/usr/sbin/sshd -D\n",
        )
        .with_link(
            "etc/systemd/system/sshd.service",
            "../../../lib/systemd/system/ssh.service",
        )
        .with(
            "lib/systemd/system/ssh.service.d/1.conf",
            "[Service]\nUser=own\n",
        )
        .with(
            "etc/systemd/system/sshd.service.d/1.conf",
            "[Service]\nUser=alias\n",
        )
        .with(
            "lib/systemd/system/sshd.service.d/2.conf",
            "[Service]\nGroup=alias\n",
        )
        .with(
            "etc/systemd/system/service.d/2.conf",
            "[Service]\nGroup=type\n",
        );
    for name in ["ssh.service", "sshd.service"] {
        let unit = root.read(name).unwrap();
        assert_eq!(unit.name, "ssh.service");
        assert_eq!(unit.last("User"), Some("own"));
        assert_eq!(unit.last("Group"), Some("alias"));
    }
}

#[test]
fn chain_of_too_many_aliases_leads_to_no_unit() {
    let mut root = Root::new("chain").with(
        "lib/systemd/system/0.service",
        "[Service]\nExecStart=/bin/z\n",
    );
    for number in 1..=8 {
        let link = format!("lib/systemd/system/{number}.service");
        root = root.with_link(&link, &format!("{}.service", number - 1));
    }
    assert!(root.read("7.service").is_ok());
    assert!(root.read("8.service").is_err());
}

#[test]
fn alias_of_a_template_is_one_of_its_instances() {
    let root = Root::new("template")
        .with("lib/systemd/system/al@.service", "[Service]\nUser=al\n")
        .with_link("lib/systemd/system/other@.service", "al@.service")
        .with(
            "lib/systemd/system/other@i.service.d/1.conf",
            "[Service]\nGroup=i\n",
        )
        .with(
            "lib/systemd/system/other@own.service",
            "[Service]\nUser=own\n",
        )
        .with(
            "lib/systemd/system/other@own.service.d/1.conf",
            "[Service]\nGroup=own\n",
        );
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
    let root = Root::new("linked")
        .with("opt/b.service", "[Service]\nUser=b\n")
        .with_link("etc/systemd/system/a.service", "../../../opt/b.service");
    let unit = root.read("a.service").unwrap();
    assert_eq!(unit.name, "a.service");
    assert_eq!(unit.last("User"), Some("b"));
}

#[test]
fn unit_of_a_late_generator_is_found() {
    let root = Root::new("late").with(
        "run/systemd/generator.late/a.service",
        "[Service]\nUser=a\n",
    );
    assert_eq!(root.read("a.service").unwrap().last("User"), Some("a"));
}

#[test]
fn empty_file_masks_a_unit_as_dev_null_does() {
    let root = Root::new("masked")
        .with("etc/systemd/system/empty.service", "")
        .with("lib/systemd/system/empty.service", "[Service]\nUser=a\n")
        .with_link("etc/systemd/system/null.service", "/dev/null");
    for (name, reason) in [
        ("null", "is masked"),
        ("empty", "is masked"),
        ("absent", "no file"),
    ] {
        let refused = root.refusal(&format!("{name}.service"));
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn line_goes_on_after_a_backslash_that_is_last_and_not_escaped() {
    for (end, command, user) in [
        (r"\", "/bin/a User=b", None),
        (r"\\", r"/bin/a\\", Some("b")),
        (r"\\\", r"/bin/a\\ User=b", None),
        // With its blank, the last word can be written into a drop-in.
        (r"\ ", r"/bin/a\ ", Some("b")),
    ] {
        let text = format!("[Service]\nExecStart=/bin/a{end}\nUser=b\n");
        let root = Root::new("backslash").with("lib/systemd/system/a.service", &text);
        let unit = root.read("a.service").unwrap();
        assert_eq!(unit.last("ExecStart"), Some(command), "{end:?}");
        assert_eq!(unit.last("User"), user, "{end:?}");
    }
}

#[test]
fn comment_need_not_be_utf_8() {
    let unit = "lib/systemd/system/a.service";
    let root = Root::new("latin-1").with(unit, "");
    fs::write(root.0.join(unit), b"# caf\xe9\n[Service]\nUser=a\n").unwrap();
    assert_eq!(root.read("a.service").unwrap().last("User"), Some("a"));
}

#[test]
fn what_is_no_file_replaces_drop_ins_of_its_name_and_is_ignored() {
    let drop_ins = "etc/systemd/system/a.service.d";
    let replaced = "lib/systemd/system/a.service.d";
    let text = "[Service]\nUser=replaced\n";
    let root = Root::new("no-file")
        .with("lib/systemd/system/a.service", "[Service]\nUser=a\n")
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
