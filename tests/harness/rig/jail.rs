//! `peername jail` on the lab's balancer: the host outside of the jail. The origins are on the lab's server, whose names the
//! interceptor resolves by the test's own hosts file.

use std::process::{Command, Output};

use crate::harness::lab::{Process, Scratch, assert_succeeds, with_files};
use crate::harness::peername::{AS_NOBODY, NO_CAPABILITIES, User, copy_executable};
use crate::harness::rig::intercept::InterceptLab;

/// nginx on the origin's host, and the files of the test.
pub(crate) struct JailRig {
    _origin: Process,
    pub(crate) stage: InterceptLab,
    binary: String,
    /// Options of every jail.
    options: Vec<String>,
}

impl JailRig {
    /// A rig in which the origins' network is an allowed destination.
    pub(crate) fn new() -> Self {
        Self::with_options(&["--allow-destination=10.81.0.0/24"])
    }

    /// A rig in whose jails private addresses are refused, unless a rule names them.
    pub(crate) fn without_destinations() -> Self {
        Self::with_options(&[])
    }

    fn with_options(options: &[&str]) -> Self {
        let stage = InterceptLab::new();
        let _origin = stage.start_nginx();
        stage.scratch.write("nsswitch.conf", "hosts: files dns\n");
        let binary = copy_executable(&stage.lab.balancer, &stage.scratch);
        Self {
            _origin,
            stage,
            binary,
            options: options.iter().map(|&option| option.to_owned()).collect(),
        }
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.stage.scratch
    }

    /// A pattern for pgrep(1) that matches the interceptors of this rig and their supervisors.
    pub(crate) fn interceptor_pattern(&self) -> String {
        format!("^{} jail ", self.binary)
    }

    /// Runs a shell script in a jail. Every request is allowed unless an option decides on requests.
    pub(crate) fn run(&self, user: User, options: &[&str], script: &str) -> Output {
        self.run_program(user, options, &["sh", "-c", script])
    }

    /// Runs a shell script in a jail, asserts success, and returns what it printed.
    #[track_caller]
    pub(crate) fn succeeds(&self, user: User, options: &[&str], script: &str) -> String {
        assert_succeeds(&self.run(user, options, script))
    }

    /// Like [`Self::succeeds`], for the user `nobody`, with these variables (`NAME=VALUE`) in the environment of `peername jail`.
    #[track_caller]
    pub(crate) fn succeeds_with(
        &self,
        variables: &[&str],
        options: &[&str],
        script: &str,
    ) -> String {
        let words = self.command_with(User::Nobody, variables, options, &["sh", "-c", script]);
        assert_succeeds(&self.output(words))
    }

    pub(crate) fn run_program(&self, user: User, options: &[&str], program: &[&str]) -> Output {
        self.output(self.command(user, options, program))
    }

    fn output(&self, words: Vec<String>) -> Output {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "60"]).args(words);
        self.stage.lab.balancer.output(&mut command, "")
    }

    /// Starts a program in a jail.
    pub(crate) fn start(&self, user: User, options: &[&str], program: &[&str]) -> Process {
        let words = self.command(user, options, program);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Process::start(&self.stage.lab.balancer, "env", &words)
    }

    /// Starts a program as this user, without a jail.
    pub(crate) fn start_outside(&self, user: User, program: &[&str]) -> Process {
        let words = self.on_host(user, program);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Process::start(&self.stage.lab.balancer, "env", &words)
    }

    /// Runs a shell script as this user, without a jail. Names resolve by the test's hosts file.
    pub(crate) fn run_outside(&self, user: User, script: &str) -> Output {
        self.output(self.on_host(user, &["sh", "-c", script]))
    }

    fn command(&self, user: User, options: &[&str], program: &[&str]) -> Vec<String> {
        self.command_with(user, &[], options, program)
    }

    fn command_with(
        &self,
        user: User,
        variables: &[&str],
        options: &[&str],
        program: &[&str],
    ) -> Vec<String> {
        let root = self.scratch().path_text("root.pem");
        let rig_options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let allow_any: &[&str] = if options.iter().any(|option| decides_on_requests(option)) {
            &[]
        } else {
            &["--allow=any"]
        };
        let jail = [
            &["env"],
            variables,
            &[&self.binary, "jail", "--extra-ca", &root][..],
            &rig_options,
            allow_any,
            options,
            &["--"],
            program,
        ];
        self.on_host(user, &jail.concat())
    }

    /// A command of this user, in a mount namespace where names resolve by the test's hosts file. It inherits descriptor 7, a
    /// socket that is connected to the origins' host, for an attempt to use it in the jail.
    fn on_host(&self, user: User, command: &[&str]) -> Vec<String> {
        let [hosts, order] = ["hosts", "nsswitch.conf"].map(|name| self.scratch().path_text(name));
        let through = with_files(&[(&hosts, "/etc/hosts"), (&order, "/etc/nsswitch.conf")]);
        let with_socket = "exec 7<>/dev/udp/10.81.0.1/7000 && exec \"$@\"";
        let with_socket = ["bash", "-c", with_socket, "bash"];
        let user = match user {
            User::Root => vec![],
            User::Nobody => [AS_NOBODY, NO_CAPABILITIES].concat(),
        };
        let all = [&through[..], &with_socket, &user, command].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    /// Starts a forwardAuth service that allows requests to these hosts, and returns the option that names the service. The
    /// service prints each request that it checks as a line `HOST:PORT METHOD PATH`.
    pub(crate) fn start_check(&self, hosts: &[&str]) -> (Process, String) {
        let script = self.scratch().write("check.py", CHECK);
        let args = [&["-u", &script, CHECK_PORT][..], hosts].concat();
        let check = Process::start(&self.stage.lab.balancer, "/usr/bin/python3", &args);
        check.wait_logged("ready");
        (check, format!("--check=http://127.0.0.1:{CHECK_PORT}/"))
    }
}

/// Whether this option decides on requests, so that the jail is started without `--allow=any`.
fn decides_on_requests(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    matches!(
        name,
        "--allow" | "--config" | "--deny" | "--check" | "--check-list" | "--learn" | "--ask"
    )
}

const CHECK_PORT: &str = "9191";
const CHECK: &str = include_str!("jail/check.py");
