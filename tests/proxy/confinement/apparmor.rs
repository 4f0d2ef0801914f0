//! The AppArmor profile of the services: it compiles, and where the kernel has AppArmor it is enforced and permits what a
//! service needs.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::lab::{Scratch, assert_contains, stderr_text};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::proxy::{ProxyRig, connect_client};

#[test]
fn profile_of_the_services_is_enforced_and_sufficient() {
    let scratch = Scratch::new();
    let profile = Profile::of_this_binary(&scratch);
    profile.parse(&["--skip-kernel-load"]);
    if fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on == "Y\n") {
        profile.parse(&["--replace"]);
        serves_reloads_and_upgrades(&scratch);
        profile.parse(&["--remove"]);
    } else {
        eprintln!("this kernel has no AppArmor: the profile was only compiled");
    }
}

/// The files of LoadCredential= that the pages have in their examples.
#[test]
fn profile_of_the_services_permits_their_credentials() {
    for page in [
        include_str!("../../../docs/service.md"),
        include_str!("../../../docs/intercept.md"),
    ] {
        assert_contains(page, &["/run/credentials/peername-intercept.service/"]);
    }
    let rules = [
        "\n  /run/credentials/peername*/ r,\n",
        "\n  /run/credentials/peername*/** r,\n",
    ];
    assert_contains(&shipped_profile(), &rules);
}

fn serves_reloads_and_upgrades(scratch: &Scratch) {
    let trusted = scratch.write("trusted", "10.81.0.0/24\n");
    let trust = format!("--trust=@{trusted}");
    let mut rig = ProxyRig::start_through(&["aa-exec", "--profile", NAME, "--"], &[&trust]);
    let label = |pid| fs::read_to_string(format!("/proc/{pid}/attr/current")).unwrap_or_default();
    assert_eq!(label(rig.proxy.pid()), format!("{NAME} (enforce)\n"));
    rig.assert_serves(fresh_client_v4());

    rig.proxy.signal(Signal::HUP);
    rig.proxy.wait_logged("\"reloaded\"");
    rig.proxy.signal(Signal::USR2);
    rig.proxy.wait_logged("upgraded: the new process serves");
    let client = fresh_client_v4();
    let _down = connect_client(&rig.lab, LISTEN_V4, client);
    rig.accept_client(client);

    // Any user can read that file, and no service needs it.
    let args = words("proxy --trust=@/etc/login.defs --target-v4=127.0.0.1:9");
    let confined = ["aa-exec", "--profile", NAME, "--", BINARY];
    let refused = Peername::run_with_input(&rig.lab.server, &confined, &args, "");
    assert_contains(&stderr_text(&refused), &["Permission denied"]);
}

fn shipped_profile() -> String {
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/apparmor/peername-service");
    fs::read_to_string(shipped).expect("the profile")
}

/// The shipped profile under another name, for the binary under test and its files in the scratch folder.
struct Profile {
    file: String,
}

const NAME: &str = "peername-service-test";

impl Profile {
    fn of_this_binary(scratch: &Scratch) -> Self {
        let shipped = shipped_profile();
        let binary = fs::canonicalize(BINARY).expect("the binary");
        let files = scratch.path_text("**");
        let rules = format!("{files} r,\n  {} mrix,", binary.display());
        let changed = shipped
            .replace("peername-service", NAME)
            .replace("/usr/{,local/}bin/peername mrix,", &rules);
        assert!(changed.contains(&rules), "{changed}");
        Self {
            file: scratch.write("profile", &changed),
        }
    }

    #[track_caller]
    fn parse(&self, args: &[&str]) {
        let output = Command::new("apparmor_parser")
            .arg("--skip-cache")
            .args(args)
            .arg(&self.file)
            .output()
            .expect("apparmor_parser");
        let error = stderr_text(&output);
        assert!(output.status.success(), "{args:?}: {error}");
    }
}
