//! Files of the host that a jail hides or covers stay so, whatever path or descriptor leads to them.

use std::fs;

use crate::harness::lab::{assert_fails, assert_prints, assert_succeeds, stderr_text, stdout_text};
use crate::harness::peername::{AS_NOBODY, NO_CAPABILITIES, USERS, User};
use crate::harness::rig::jail::JailRig;

/// A directory with a secret that every user may read.
fn make_secret(rig: &JailRig) -> String {
    let dir = rig.scratch().path_text("secrets");
    fs::create_dir(&dir).expect("a directory");
    rig.scratch().write("secrets/token", "SECRET\n");
    dir
}

/// A mount covers a path, and a process whose working directory is the hidden one would still see the files below the mount.
#[test]
fn working_directory_is_hidden_too() {
    let rig = JailRig::new();
    let dir = make_secret(&rig);
    let jail = rig.scratch().path_text("peername");
    for user in USERS {
        let script = format!("cd {dir} && {jail} jail --hide {dir} -- sh -c 'cat token; pwd; ls'");
        assert_prints(&rig.run_outside(user, &script), &format!("{dir}\n"));
    }
    let script = format!("mkdir {dir}/below && cd {dir}/below && {jail} jail --hide {dir} -- true");
    assert_fails(
        &rig.run_outside(User::Root, &script),
        2,
        &["working directory"],
    );
}

/// openat(2) below an inherited directory bypasses the mounts that cover the path of that directory.
#[test]
fn directory_is_not_inherited_as_a_standard_stream() {
    let rig = JailRig::new();
    let dir = make_secret(&rig);
    let jail = rig.scratch().path_text("peername");
    let script = format!("{jail} jail --hide {dir} -- cat /dev/fd/0/token <{dir}");
    let output = rig.run_outside(User::Nobody, &script);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// A mount on a file is lost when the file is replaced. A mount on a directory stays, whatever becomes of its files.
#[test]
fn hidden_directory_stays_hidden_while_files_in_it_are_replaced() {
    let rig = JailRig::new();
    let dir = make_secret(&rig);
    let go = rig.scratch().path_text("go");
    let script = format!(
        "cat {dir}/token; echo ready; read line <{go}; cat {dir}/token; ls {dir}; echo over"
    );
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, 0o644.into()).expect("a FIFO");
    let program = rig.start(User::Root, &["--hide", &dir], &["sh", "-c", &script]);
    program.wait_printed("ready");
    rig.scratch().write("secrets/new", "SECRET\n");
    fs::rename(format!("{dir}/new"), format!("{dir}/token")).expect("renamed");
    fs::write(&go, "\n").expect("written");
    program.wait_printed("over");
    assert!(!program.log().contains("SECRET"), "{}", program.log());
}

/// Package managers, systemd-resolved and NetworkManager replace /etc/hosts and /etc/resolv.conf by rename, which removes a
/// mount on the file. Without the jail's own files, names would have the addresses of the host's file.
#[test]
fn files_that_are_replaced_outside_are_covered_again() {
    let rig = JailRig::new();
    let scratch = |name: &str| rig.scratch().path_text(name);
    let users = [
        (User::Root, vec![]),
        (User::Nobody, [AS_NOBODY, NO_CAPABILITIES].concat()),
    ];
    for (user, prefix) in users {
        let [etc, ready, go] =
            ["etc", "ready", "go"].map(|name| scratch(&format!("{name}-{user:?}")));
        let program = format!(
            "echo >{ready}; read line <{go}; for i in $(seq 50); do cat /etc/hosts /etc/resolv.conf | grep -q replaced || break; sleep 0.1; done; \
             cat /etc/hosts /etc/resolv.conf | grep -c replaced; curl -sS https://a.test/echo"
        );
        let script = format!(
            "cp -a /etc {etc}; mount --bind {etc} /etc; mkfifo -m 666 {ready} {go}; \
             {} {} jail -q --allow=any --extra-ca {} --allow-destination=10.81.0.0/24 -- sh -c '{program}' & read line <{ready}; \
             for file in hosts resolv.conf; do cp /etc/$file /etc/new; echo '# replaced' >>/etc/new; mv /etc/new /etc/$file; done; \
             echo >{go}; wait",
            prefix.join(" "),
            scratch("peername"),
            scratch("root.pem"),
        );
        let output = rig.run_outside(User::Root, &script);
        let printed = stdout_text(&output);
        assert!(
            printed.starts_with("0\nGET a.test "),
            "{user:?}: {output:?}"
        );
    }
}

/// The key signs for every host, and the log records what the program did.
#[test]
fn key_of_the_authority_and_audit_log_are_out_of_reach() {
    let rig = JailRig::new();
    let (ca, log) = (
        rig.scratch().path_text("ca"),
        rig.scratch().path_text("audit.log"),
    );
    let options = ["--ca", &ca[..], "--log", &log];
    let script = format!(
        "ls {ca}; curl -sS -o /dev/null https://a.test/one; echo forged >>{log}; cat {log}; rm -f {log}; true"
    );
    let printed = rig.succeeds(User::Root, &options, &script);
    assert_eq!(printed, "");
    let lines = rig.scratch().read("audit.log");
    assert!(
        lines.contains("/one") && !lines.contains("forged"),
        "{lines}"
    );
}

/// An earlier program, outside a jail, may have given the key a name that no cover hides.
#[test]
fn key_of_the_authority_with_another_name_is_refused() {
    let rig = JailRig::new();
    let ca = rig.scratch().path_text("ca");
    let options = ["--ca", &ca[..]];
    rig.succeeds(User::Root, &options, "true");
    let key = format!("{ca}/authority.pem");
    fs::hard_link(&key, rig.scratch().path("link")).expect("link(2)");
    let output = rig.run(User::Root, &options, "true");
    assert_fails(&output, 2, &["hard link", &format!("-samefile {key}")]);
    // The other name may be that of a backup, so the error offers a way to keep it.
    let printed = stderr_text(&output);
    let copy = printed.split('`').find(|text| text.starts_with("cp "));
    assert_succeeds(&rig.run_outside(User::Root, copy.expect("a command")));
    rig.succeeds(User::Root, &options, "true");
    assert!(rig.scratch().path("link").exists());
}

/// The program can't change the files that it sees in place of the host's.
#[test]
fn covers_are_read_only() {
    let rig = JailRig::new();
    for user in USERS {
        let script = "for file in /etc/resolv.conf /etc/hosts \"$SSL_CERT_FILE\" /etc/ssl/certs/ca-certificates.crt; do \
             chmod 666 $file 2>/dev/null && echo changed $file; (echo forged >>$file) 2>/dev/null && echo written $file; done; true";
        assert_eq!(rig.succeeds(user, &[], script), "", "{user:?}");
    }
}

#[test]
fn hiding_the_directory_of_the_jails_own_files_is_wrong_usage() {
    let rig = JailRig::new();
    for hidden in ["/tmp", "/"] {
        assert_fails(
            &rig.run(User::Nobody, &["--hide", hidden], "true"),
            2,
            &["TMPDIR"],
        );
    }
}

/// ssh(1) refuses included files that neither root nor its user owns. In an ordinary user's jail, files of root have an
/// unknown owner.
#[test]
fn ssh_reads_the_configuration_of_the_system() {
    let rig = JailRig::new();
    let dir = rig.scratch().path_text("ssh_config.d");
    fs::create_dir(&dir).expect("a directory");
    rig.scratch().write(
        "ssh_config.d/50-test.conf",
        "Host configured\n  User someone\n",
    );
    let jail = rig.scratch().path_text("peername");
    // Not user 65534, to which files of unknown owners seem to belong.
    let user = "setpriv --reuid=1 --regid=1 --clear-groups --inh-caps=-all --bounding-set=-all";
    let script = format!(
        "mount --bind {dir} /etc/ssh/ssh_config.d && exec {user} {jail} jail -q -- ssh -G configured"
    );
    let output = rig.run_outside(User::Root, &script);
    let printed = stdout_text(&output);
    assert!(printed.contains("\nuser someone\n"), "{output:?}");
}

/// The program sees a copy of a directory to which the jail adds its authority. Root's jail has other users, too.
#[test]
fn copies_are_closed_to_the_users_that_the_originals_are_closed_to() {
    let rig = JailRig::new();
    let [etc, elsewhere, jail] =
        ["etc", "elsewhere", "peername"].map(|name| rig.scratch().path_text(name));
    let read = rig.scratch().write(
        "read.sh",
        "cat /etc/chromium/policies/*/[1-9] /etc/opt/chrome/policies/managed/[1-9] /etc/ssl/certs/[1-9] 2>/dev/null | tr '\\n' ' '; echo",
    );
    // Another user may read the file, and its group may not: its mode is 640 nevertheless. Or all may read it but one user.
    let acl = rig.scratch().write(
        "acl.py",
        "import os, struct, sys\n\
         user, access, others = map(int, sys.argv[2:])\n\
         entries = (1, 6, -1), (2, access, user), (4, 0, -1), (16, 4, -1), (32, others, -1)\n\
         acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)\n\
         os.setxattr(sys.argv[1], 'system.posix_acl_access', acl)\n",
    );
    let script = format!(
        "set -e; cp -a /etc {etc}; rm -rf {etc}/chromium {etc}/opt; mount --bind {etc} /etc; \
         mkdir -p /etc/ssl/certs /etc/chromium/policies/managed; cd /etc/chromium/policies; \
         mkdir -m 700 closed {elsewhere}; echo SECRET | tee closed/1 >{elsewhere}/2; ln -s {elsewhere}/2 managed/2; \
         mkdir -p /etc/opt/chrome {elsewhere}/linked/managed; ln -s {elsewhere}/linked/managed linked; \
         echo SECRET >linked/8; ln -s {elsewhere}/linked /etc/opt/chrome/policies; \
         for file in managed/3 /etc/ssl/certs/4 /etc/ssl/certs/0a1b2c3d.0; do echo SECRET >$file; chmod 600 $file; done; \
         for file in managed/5 /etc/ssl/certs/6; do echo open >$file; chmod 644 $file; done; \
         echo SECRET >managed/7; chgrp 65534 managed/7; /usr/bin/python3 {acl} managed/7 1 4 0; \
         echo SECRET >managed/9; /usr/bin/python3 {acl} managed/9 65534 0 4; cd /; \
         exec {jail} jail -q -- sh -c 'sh {read}; {} sh {read}'",
        AS_NOBODY.join(" ")
    );
    let output = rig.run_outside(User::Root, &script);
    assert_prints(
        &output,
        "SECRET SECRET SECRET SECRET open SECRET SECRET SECRET SECRET open \nopen open \n",
    );
}

/// A file system that is mounted twice has two paths to each file, and `--hide` covers both. (It does not cover snapshots.)
#[test]
fn file_is_hidden_at_each_mount_of_its_file_system() {
    let rig = JailRig::new();
    let dir = make_secret(&rig);
    let other = rig.scratch().path_text("other");
    fs::create_dir(&other).expect("a directory");
    let scratch = rig.scratch().path_text("");
    let jail = rig.scratch().path_text("peername");
    for user in [&[][..], &[AS_NOBODY, NO_CAPABILITIES].concat()] {
        let user = user.join(" ");
        let script = format!(
            "mount --bind {scratch} {other} && exec {user} {jail} jail -q --hide {dir} -- \
             sh -c 'ls {dir}; ls {other}/secrets; echo end'"
        );
        assert_prints(&rig.run_outside(User::Root, &script), "end\n");
    }
}

/// A part of a hidden directory, or a file of it, may be mounted elsewhere, also within another part.
#[test]
fn part_of_a_hidden_directory_is_hidden_where_it_is_mounted() {
    let rig = JailRig::new();
    let dir = make_secret(&rig);
    let [work, file] = ["work", "file"].map(|name| rig.scratch().path_text(name));
    fs::create_dir_all(rig.scratch().path("secrets/a/b")).expect("directories");
    for secret in ["secrets/a/key", "secrets/a/b/key"] {
        rig.scratch().write(secret, "SECRET\n");
    }
    fs::create_dir(&work).expect("a directory");
    rig.scratch().write("file", "");
    let jail = rig.scratch().path_text("peername");
    for user in [&[][..], &[AS_NOBODY, NO_CAPABILITIES].concat()] {
        let user = user.join(" ");
        let script = format!(
            "mount --bind {dir}/a {work} && mount --bind {dir}/a/b {work}/b && mount --bind {dir}/token {file} && \
             exec {user} {jail} jail -q --hide {dir} --hide {dir}/token -- sh -c 'ls {work}; cat {file}; echo end'"
        );
        assert_prints(&rig.run_outside(User::Root, &script), "end\n");
        // A path below a hidden directory may be hidden by an option of its own.
        let script = format!(
            "mount --bind {dir}/a {work} && exec {user} {jail} jail -q --hide {dir} --hide {work}/key -- sh -c 'ls {work}; echo end'"
        );
        assert_prints(&rig.run_outside(User::Root, &script), "end\n");
        let script = format!(
            "mount --bind {dir}/token {file} && exec {user} {jail} jail -q --hide {dir}/token -- sh -c 'cat {file}; echo end'"
        );
        assert_prints(&rig.run_outside(User::Root, &script), "end\n");
    }
}

/// Settings below /proc/sys are read-only at each mount of proc. One setting, core_pattern, names a program that the kernel
/// starts outside of the jail.
#[test]
fn settings_are_read_only_at_each_mount() {
    let rig = JailRig::new();
    let proc = rig.scratch().path_text("proc");
    fs::create_dir(&proc).expect("a directory");
    let jail = rig.scratch().path_text("peername");
    let write = format!("cat {proc}/sys/kernel/core_pattern >{proc}/sys/kernel/core_pattern");
    let script = format!(
        "mount -t proc proc {proc} && {write} && echo written; {jail} jail -q -- sh -c '{write} && echo written in the jail'"
    );
    assert_prints(&rig.run_outside(User::Root, &script), "written\n");
}

/// Some devices type into programs outside, stop the machine, or reach another one. In this test each is the null device, and
/// one is also mounted at a path that does not show its name.
#[test]
fn devices_that_act_outside_are_covered() {
    let rig = JailRig::new();
    let dev = rig.scratch().path_text("dev");
    fs::create_dir(&dev).expect("a directory");
    let mounted = rig.scratch().write("mounted", "");
    let jail = rig.scratch().path_text("peername");
    let names = "uinput uhid input/event7 watchdog watchdog0 ipmi0 vboxguest vboxuser xen/privcmd xen/xenbus vmbus/hv_kvp \
         vport1p1 vhost-vsock kmsg nvme0 nvme-fabrics sg0 nst0 mtd0 bsg/0:0:0:0";
    let script = format!(
        "mount -t tmpfs x {dev} && cd {dev} && mkdir input xen vmbus bsg shm pts && \
         for name in {names} full null zero random urandom tty; do mknod -m 666 $name c 1 3; done && \
         mount --bind uinput {mounted} && mount --move {dev} /dev && cd / && {jail} jail -q -- \
         sh -c 'cd /dev; for name in {names} {mounted} full; do test -c $name && echo $name; done; true'"
    );
    assert_prints(&rig.run_outside(User::Root, &script), "full\n");
}
