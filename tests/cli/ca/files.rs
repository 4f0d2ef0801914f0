//! The authority's files: what is written, and what is refused.

use crate::harness::lab::{assert_contains, assert_fails, stdout_text};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use serde_json::Value;

use crate::harness::peername::{AS_NOBODY, Peername, copy_executable};
use crate::harness::rig::ca::CaRig;

#[test]
fn authority_may_sign_leaves_only() {
    let rig = CaRig::new(&["--common-name", "a test", "--days", "90"]);
    fs::write(rig.scratch.path("ca.pem"), rig.succeeds("export", &[])).expect("a file");
    let printed = rig.shell_succeeds(
        "openssl verify -x509_strict -check_ss_sig -CAfile $DIR/ca.pem $DIR/ca.pem",
    );
    assert_contains(&printed, &["OK"]);
    let printed = rig.shell_succeeds("openssl x509 -in $DIR/ca.pem -noout -text");
    assert_contains(
        &printed,
        &[
            "CN = a test",
            "X509v3 Basic Constraints: critical\n                CA:TRUE, pathlen:0",
            "X509v3 Key Usage: critical\n                Certificate Sign, CRL Sign\n",
            "X509v3 Subject Key Identifier",
            "ASN1 OID: prime256v1",
        ],
    );
    assert!(!printed.contains("Name Constraints"), "{printed}");
    rig.shell_succeeds("openssl x509 -in $DIR/ca.pem -noout -checkend $((89 * 86400))");
    rig.shell_succeeds("! openssl x509 -in $DIR/ca.pem -noout -checkend $((91 * 86400))");
    let shown: Value = serde_json::from_str(&rig.succeeds("show", &["--json"])).expect("JSON");
    let fingerprint =
        rig.shell_succeeds("openssl x509 -in $DIR/ca.pem -noout -fingerprint -sha256");
    let sha256 = shown
        .get("sha256")
        .and_then(Value::as_str)
        .expect("a fingerprint");
    assert_eq!(
        fingerprint.trim().split_once('=').map(|(_, sha256)| sha256),
        Some(sha256)
    );
    assert!(rig.succeeds("show", &[]).contains(sha256));
}

#[test]
fn authority_is_valid_from_a_day_before_to_365_days_after_its_creation() {
    let rig = CaRig::new(&[]);
    fs::write(rig.scratch.path("ca.pem"), rig.succeeds("export", &[])).expect("a file");
    let days = rig.shell_succeeds(
        "now=$(date +%s); for end in startdate enddate; do
            date=$(openssl x509 -in $DIR/ca.pem -noout -$end | cut -d= -f2)
            # Rounded to a day, by half of one.
            echo $((($(date -d \"$date\" +%s) - now + 400 * 86400 + 43200) / 86400 - 400))
        done",
    );
    assert_eq!(days, "-1\n365\n");
}

/// Whatever the umask, the directory has mode 700 and the key 600.
#[test]
fn key_is_readable_by_its_owner_alone_with_any_umask() {
    for umask in ["0000", "0022", "0777"] {
        let rig = CaRig::empty();
        rig.shell_succeeds(&format!("umask {umask}; $PEERNAME ca init --ca $CA"));
        let printed = rig.shell_succeeds("cd $CA && stat -c '%a %n' . *");
        assert_eq!(printed, "700 .\n600 authority.pem\n", "{umask}");
    }
}

#[test]
fn concurrent_ca_init_makes_one_authority() {
    let rig = CaRig::empty();
    let outputs = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| rig.ca("init", &[])))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect::<Vec<_>>()
    });
    let (made, refused): (Vec<_>, Vec<_>) =
        outputs.iter().partition(|output| output.status.success());
    assert_eq!(made.len(), 1, "{outputs:?}");
    for output in refused {
        assert_fails(output, 1, &["is there already"]);
    }
    let shown: Value = serde_json::from_str(&rig.succeeds("show", &["--json"])).expect("JSON");
    let sha256 = shown
        .get("sha256")
        .and_then(Value::as_str)
        .expect("a fingerprint");
    let winner = made.first().expect("one");
    assert!(stdout_text(winner).contains(sha256));
}

#[test]
fn files_open_to_others_are_refused_with_the_remedy() {
    let rig = CaRig::new(&[]);
    let key = format!("{}/authority.pem", rig.ca);
    let chmod =
        |path: &str, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
    chmod(&key, 0o640);
    let printed = rig.fails("show");
    assert_contains(&printed, &[&format!("chmod 600 {key}")]);
    chmod(&key, 0o600);
    chmod(&rig.ca, 0o770);
    let printed = rig.fails("export");
    assert_contains(&printed, &[&format!("chmod go-w {}", rig.ca)]);
    chmod(&rig.ca, 0o755);
    rig.succeeds("show", &[]);
    rig.shell_succeeds("chown 65534 $CA/authority.pem");
    let printed = rig.fails("show");
    assert_contains(&printed, &["chown 0"]);
}

/// For a shared directory the error advises another one, because chmod(1) would break the programs that use the shared one.
/// If it has an authority already, the error advises chmod(1).
#[test]
fn shared_directory_is_refused_with_another_one() {
    let rig = CaRig::new(&[]);
    let shared = rig.scratch.path_text("shared");
    fs::create_dir(&shared).expect("a directory");
    for mode in [0o1777, 0o777] {
        fs::set_permissions(&shared, Permissions::from_mode(mode)).expect("chmod");
        for command in [&["ca", "show"][..], &["ca", "init"], &["intercept"]] {
            let args = [command, &["--ca", &shared]].concat();
            let printed = Peername::run_failing(&rig.host, &args, 1);
            let advice = format!(
                "--ca {shared}: a directory that others may write; name one of your own: --ca {shared}/ca"
            );
            assert_contains(&printed, &[&advice]);
            assert!(!printed.contains("chmod"), "{printed}");
        }
    }
    rig.shell_succeeds("cp $CA/authority.pem $DIR/shared");
    let args = ["ca", "show", "--ca", &shared];
    assert_contains(&Peername::run_failing(&rig.host, &args, 1), &["chmod go-w"]);
}

/// As Kubernetes mounts a Secret for a user: root's file, readable by a group of that user.
#[test]
fn roots_key_may_be_readable_by_its_group() {
    let rig = CaRig::new(&[]);
    let copy = copy_executable(&rig.host, &rig.scratch);
    let show = || {
        let program = [AS_NOBODY, &[&copy]].concat();
        let args = ["ca", "show", "--ca", &rig.ca];
        Peername::run_with_input(&rig.host, &program, &args, "")
    };
    rig.shell_succeeds("chgrp -R 65534 $CA && chmod 750 $CA && chmod 440 $CA/authority.pem");
    assert!(show().status.success(), "{:?}", show());
    for mode in ["444", "460"] {
        rig.shell_succeeds(&format!("chmod {mode} $CA/authority.pem"));
        let output = show();
        assert_eq!(output.status.code(), Some(1), "{mode}: {output:?}");
    }
}

#[test]
fn authority_of_another_kind_is_refused_by_name() {
    let rig = CaRig::new(&[]);
    let make = |key: &str, subject: &str| {
        rig.shell_succeeds(&format!(
            "cd $DIR && openssl req -x509 -newkey {key} -nodes -keyout k -out c -days 9 -subj '{subject}' \
             -addext keyUsage=critical,keyCertSign && cat k c >$CA/authority.pem"
        ));
    };
    const P256: &str = "ec -pkeyopt ec_paramgen_curve:prime256v1";
    make(P256, "/CN=fine");
    rig.succeeds("show", &[]);
    make("rsa:2048", "/CN=RSA");
    assert!(rig.fails("show").contains("not a P-256 key"));
    // rcgen would write such a name with one unit, and no client would find the issuer of a leaf.
    make(P256, "/CN=two units/OU=one/OU=two");
    assert!(rig.fails("show").contains("repeated part"));
    fs::write(format!("{}/authority.pem", rig.ca), "no key").expect("a file");
    assert!(rig.fails("show").contains("no private key"));
    fs::remove_file(format!("{}/authority.pem", rig.ca)).expect("unlink");
    assert!(rig.fails("show").contains("peername ca init"));
}

/// In both of OpenSSL's forms. The command keeps the certificate beside the key, and the owner and the mode, also where root runs
/// it for another user.
#[test]
fn encrypted_key_is_refused_with_the_command_that_decrypts_it() {
    for (encrypt, owner) in [("pkcs8 -topk8", "65534:65534"), ("ec -aes256", "0:0")] {
        let rig = CaRig::new(&[]);
        let shown = rig.succeeds("show", &[]);
        rig.shell_succeeds(&format!(
            "cd $CA && openssl {encrypt} -passout pass:secret -in authority.pem -out $DIR/key &&
             openssl x509 -in authority.pem >>$DIR/key && cp $DIR/key authority.pem"
        ));
        let printed = rig.fails("show");
        let (_, command) = printed.split_once("decrypt it: `").expect("a command");
        let (command, _) = command.split_once('`').expect("its end");
        let command = command.replace("pkey ", "pkey -passin pass:secret ");
        let kept = rig.shell_succeeds(&format!(
            "cd $CA && chown {owner} authority.pem && chmod 400 authority.pem && {command} >&2 &&
             stat -c %u:%g/%a authority.pem && chown 0:0 authority.pem"
        ));
        assert_eq!(kept, format!("{owner}/400\n"));
        assert_eq!(rig.succeeds("show", &[]), shown);
    }
}

/// `ca rotate` does not replace a file that `ca init` did not make, so the message does not recommend it.
#[test]
fn foreign_file_has_to_be_moved_away() {
    let rig = CaRig::new(&[]);
    let printed = rig.fails("init");
    let fix = format!("`peername ca rotate --ca {}` replaces", rig.ca);
    assert!(printed.contains(&fix), "{printed}");
    let path = format!("{}/authority.pem", rig.ca);
    let ours = fs::read_to_string(&path).expect("the authority");
    let foreign = rig.shell_succeeds(
        "cd $DIR && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k \
         -out c -days 9 -subj /O=Example -addext keyUsage=critical,keyCertSign 2>/dev/null; cat k c",
    );
    for (content, why) in [
        (&ours[..ours.len() / 2], "damaged"),
        ("no key", "no private key"),
        (&foreign, "not made by"),
    ] {
        fs::write(&path, content).expect("a file");
        assert_eq!(rig.ca("rotate", &[]).status.code(), Some(1), "{why}");
        let printed = rig.fails("init");
        assert_contains(&printed, &[why, "move it away"]);
        assert!(!printed.contains("rotate"), "{printed}");
        assert_eq!(fs::read_to_string(&path).expect("it stays"), content);
    }
    rig.shell_succeeds("mv $CA/authority.pem $DIR/away && $PEERNAME ca init --ca $CA");
}

/// A proxy that was started before the rotation still has the old key.
#[test]
fn rotation_exports_both_authorities() {
    let rig = CaRig::new(&["--permit", "example.com"]);
    let old = rig.succeeds("export", &[]);
    rig.succeeds("rotate", &[]);
    let both = rig.succeeds("export", &[]);
    assert!(both.ends_with(&old) && both.len() > old.len());
    rig.shell_succeeds("$PEERNAME ca env --ca $CA");
    let bundle = fs::read_to_string(format!("{}/bundle.pem", rig.ca)).expect("the bundle");
    assert!(bundle.starts_with(&both));
    let shown: Value = serde_json::from_str(&rig.succeeds("show", &["--json"])).expect("JSON");
    assert_eq!(
        shown.pointer("/permitted/0"),
        Some(&Value::from("example.com"))
    );
    assert_eq!(
        shown.pointer("/previous/0/permitted/0"),
        Some(&Value::from("example.com"))
    );
}

#[test]
fn authority_directory_follows_the_environment() {
    let rig = CaRig::empty();
    let home = "HOME=$DIR/home XDG_STATE_HOME=";
    for (environment, directory) in [
        (home.to_owned(), "home/.local/state/peername/ca"),
        (format!("{home}relative"), "home/.local/state/peername/ca"),
        (format!("{home}$DIR/xdg"), "xdg/peername/ca"),
        (
            format!("{home}$DIR/xdg STATE_DIRECTORY=$DIR/service"),
            "service/ca",
        ),
    ] {
        rig.shell_succeeds(&format!(
            "env {environment} $PEERNAME ca init && rm $DIR/{directory}/authority.pem"
        ));
    }
    let output = rig.shell("env -i $PEERNAME ca show");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn invalid_option_of_ca_init_exits_2() {
    let rig = CaRig::empty();
    for options in [
        ["--days", "0"],
        ["--common-name", ""],
        ["--permit", "*.example.com"],
    ] {
        let args = [&["ca", "init", "--ca", &rig.ca], &options[..]].concat();
        let output = Peername::run(&rig.host, &args);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
    }
}
