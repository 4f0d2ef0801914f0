//! `--ask`: questions on the terminal about requests that no access rule decides on.

use crate::harness::addr::v4;
use crate::harness::lab::{Process, assert_fails, assert_succeeds};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

const EXPECT: &str = include_str!("../harness/programs/terminal/expect.py");
const QUESTION: &str = "is not on the lists";
const PROMPT: &str = r"see:or deny: ";

/// Runs a command in a terminal, with these steps of `expect.py`, and returns what it printed. `$JAIL` is `peername jail` with
/// the options that every test needs.
fn run_in_terminal(rig: &JailRig, user: User, steps: &[&str], command: &[&str]) -> String {
    let script = rig.scratch().write("expect.py", EXPECT);
    let jail = format!(
        "{} jail -q --extra-ca {} --allow-destination=10.81.0.0/24",
        rig.scratch().path_text("peername"),
        rig.scratch().path_text("root.pem")
    );
    let quoted: String = [steps, &["--"], command]
        .concat()
        .iter()
        .map(|word| format!(" '{}'", word.replace('\'', r"'\''")))
        .collect();
    let output = rig.run_outside(
        user,
        &format!(
            "export JAIL='{jail}' CURL='curl -sS --max-time 15'; /usr/bin/python3 {script}{quoted}"
        ),
    );
    let printed = assert_succeeds(&output);
    assert!(!printed.contains("waited in vain for"), "{printed}");
    printed
}

#[test]
fn answers_on_the_terminal_decide_on_what_no_rule_matches() {
    let rig = JailRig::new();
    let script = "$CURL https://b.test/echo; $CURL https://a.test/one; $CURL https://a.test/echo; \
                  $CURL https://a.test/echo; $CURL http://a.test/\u{e4}; $CURL http://a.test/four; $CURL https://h1.test/five";
    let command = format!(
        "list=$(mktemp -u); $JAIL --deny=h1.test --allow=b.test --ask --ask-list=$list -- sh -c '{script}'; \
         echo \"the list has $(grep -v '^#' $list).\"; rm $list"
    );
    let steps = [
        "see:GET b.test ",
        r"see:\npeername: a.test:443 is not on the lists: GET /one\r\n",
        PROMPT,
        r"type:yes\n",
        "see:type the whole word once, always or deny: ",
        r"type:once\n",
        r"see:404",
        r"see:a.test:443 is not on the lists: GET /echo\r\n",
        PROMPT,
        r"type:always\n",
        r"see:GET a.test .*\r\nGET a.test ",
        r"see:a.test:80 is not on the lists: GET /%c3%a4\r\n",
        PROMPT,
        r"type:deny\n",
        "see:denied on the terminal",
        "see:denied on the terminal",
        "see:denied by the rule deny h1.test",
        "see:the list has a.test.",
    ];
    for user in USERS {
        let printed = run_in_terminal(&rig, user, &steps, &["sh", "-c", &command]);
        assert!(
            printed.trim_end().ends_with("exit 0"),
            "{user:?}: {printed}"
        );
        assert_eq!(printed.matches(QUESTION).count(), 3, "{user:?}: {printed}");
    }
}

#[test]
fn rules_that_only_deny_leave_the_rest_to_the_terminal() {
    let rig = JailRig::new();
    let script = "$CURL https://h1.test/echo; $CURL https://a.test/echo";
    let command = format!("exec $JAIL --deny=h1.test --ask -- sh -c '{script}'");
    let steps = [
        "see:denied by the rule deny h1.test",
        "see:a.test:443 is not on the lists",
        PROMPT,
        r"type:once\n",
        "see:GET a.test ",
    ];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", &command]);
    assert_eq!(printed.matches(QUESTION).count(), 1, "{printed}");
}

/// A connection that is relayed unopened has no rule in its audit line, and shows that a person allowed it.
#[test]
fn audit_line_of_a_relayed_connection_names_the_terminal() {
    let rig = JailRig::new();
    let args = [
        "TCP-LISTEN:9418,bind=10.81.0.1,fork,reuseaddr",
        "SYSTEM:echo hello",
    ];
    let server = Process::start(&rig.stage.lab.server, "socat", &args);
    let _server = server.wait_listening(&[v4([10, 81, 0, 1], 9418)]);
    let command = "log=$(mktemp -u); $JAIL --ask --log=$log -- bash -c 'cat </dev/tcp/a.test/9418'; \
                   until grep -q duration_ms $log; do sleep 0.1; done; cat $log; rm $log";
    let steps = [
        "see:a.test:9418 is not on the lists: CONNECT",
        PROMPT,
        r"type:always\n",
        "see:hello",
        r#"see:"decision":"allowed","how":"terminal","#,
    ];
    run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", command]);
}

/// An address that is not public needs a rule or an option; no answer allows it. So there is no question about it.
#[test]
fn address_that_no_answer_opens_is_denied_without_a_question() {
    let rig = JailRig::new();
    let reason = "see:no answer of --ask could: not a public address";
    for (rule, remedy) in [
        ("", "see:--allow-destination 192.168.7.7:80"),
        ("--allow=b.test", "see:--allow 192.168.7.7:80"),
    ] {
        let script = "$CURL http://192.168.7.7/; $CURL http://10.81.0.1/";
        let command = format!("exec $JAIL {rule} --ask -- sh -c '{script}'");
        let steps = [
            reason,
            remedy,
            "see:10.81.0.1:80 is not on the lists",
            PROMPT,
            r"type:deny\n",
            "see:denied on the terminal",
        ];
        let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", &command]);
        assert_eq!(printed.matches(QUESTION).count(), 1, "{printed}");
    }
}

/// The connection of a client that sends no request, for example because it refuses the jail's certificate.
#[test]
fn connection_without_a_request_is_denied_where_there_is_no_question() {
    let rig = JailRig::new();
    let command = "log=$(mktemp -u); $JAIL --ask --log=$log -- sh -c 'openssl s_client -connect 192.168.7.7:443 </dev/null'; \
                   until grep -q duration_ms $log; do sleep 0.1; done; cat $log; rm $log";
    let steps = [r#"see:"decision":"denied","how":"list","reason":"no rule allows it"#];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", command]);
    assert!(!printed.contains(QUESTION), "{printed}");
}

/// An answer may allow a request to a host that no rule matches, but not to one that a rule denies.
#[test]
fn secret_is_called_unused_only_where_no_answer_allows_a_request() {
    let rig = JailRig::new();
    let command = "secret=$(mktemp); echo treasure >$secret; $(echo $JAIL | sed 's/ -q//') --ask --deny=c.test \
                   --inject=a.test=X-Mine@$secret --inject=c.test=X-Mine@$secret -- true; rm $secret";
    let steps = ["see:--inject for c.test:443: no rule allows a request"];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", command]);
    assert!(!printed.contains("--inject for a.test:443"), "{printed}");
}

/// A rule opens no port at the hosts of another rule, neither one that is relayed nor one whose requests are read.
#[test]
fn port_of_a_rule_is_open_at_its_hosts_only() {
    let rig = JailRig::new();
    for (rule, code) in [
        ("c.test:9000", "tcp_not_allowed"),
        ("c.test:9000/", "destination_port"),
    ] {
        let command = format!(
            "log=$(mktemp -u); $JAIL --ask --allow={rule} --allow=any --log=$log -- $CURL http://203.1.1.1:9000/; \
             until grep -q duration_ms $log; do sleep 0.1; done; cat $log; rm $log"
        );
        let step = format!("see:\"code\":\"{code}\"");
        run_in_terminal(&rig, User::Nobody, &[&step], &["sh", "-c", &command]);
    }
}

#[test]
fn name_at_a_port_that_no_answer_opens_is_denied_without_a_question() {
    let rig = JailRig::new();
    // Without --allow-destination, which opens every port of some addresses.
    let command = "exec ${JAIL% --allow-destination=*} --ask --allow=c.test:9000/ -- $CURL http://d.test:9000/";
    let steps = [
        "see:no answer of --ask could: a port other than 80 and 443",
        "see:--allow d.test:9000",
    ];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", command]);
    assert!(!printed.contains(QUESTION), "{printed}");
}

/// The shell in the jail makes a process group for each job, and one of these has the foreground when a question comes.
#[test]
fn question_takes_the_foreground_of_a_job_and_returns_it() {
    let rig = JailRig::new();
    let steps = [
        r"see:\$ ",
        r"type:$CURL https://a.test/echo\n",
        PROMPT,
        r"type:always\n",
        "see:GET a.test ",
        r"see:\$ ",
        // Ctrl-C at a question interrupts the job.
        r"type:$CURL https://b.test/echo\n",
        PROMPT,
        r"type:\x03",
        r"see:\$ ",
        r"type:echo code $?\n",
        "see:code 130",
        // After the question the terminal has its previous modes again.
        r#"type:sh -c "echo up; exec sleep 50"\n"#,
        r"see:\nup\r\n",
        r"type:\x03",
        r"see:\$ ",
        // The rest of the command line is no answer.
        r"type:$CURL https://b.test/echo; echo code $?\n",
        PROMPT,
        r"type:once\n",
        "see:GET b.test ",
        "see:code 0",
        r"type:exit 3\n",
    ];
    let command = "PS1='$ ' exec $JAIL --ask -- bash --norc --noprofile -i";
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["bash", "-c", command]);
    assert!(printed.trim_end().ends_with("exit 3"), "{printed}");
    assert!(!printed.contains("no job control"), "{printed}");
}

/// The list is missing at the first run, which creates it.
#[test]
fn list_of_answers_is_applied_and_added_to_by_one_command() {
    let rig = JailRig::new();
    let command = "list=$(mktemp -u); for run in 1 2; do \
                   $JAIL --ask --allow=@$list --ask-list=$list -- sh -c '$CURL https://a.test/echo'; done; rm $list";
    let steps = [
        PROMPT,
        r"type:always\n",
        "see:GET a.test ",
        "see:GET a.test ",
    ];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", command]);
    assert_eq!(printed.matches(QUESTION).count(), 1, "{printed}");
    // A list of `--allow` that `--ask-list` does not name has to exist.
    let options = [
        "--ask-list=/tmp/none",
        "--ask",
        "--allow=@/tmp/peername-other",
    ];
    assert_fails(&rig.run(User::Root, &options, "true"), 2, &["no such file"]);
}

#[test]
fn question_without_an_answer_denies_that_request_only() {
    let rig = JailRig::new();
    let script = "$CURL https://a.test/echo; $CURL https://a.test/echo";
    let command = format!("exec $JAIL --ask --ask-timeout=1s -- sh -c '{script}'");
    let steps = [
        PROMPT,
        "see:peername: no answer: denied",
        "see:there was no answer on the terminal",
        PROMPT,
        r"type:once\n",
        "see:GET a.test ",
    ];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &["sh", "-c", &command]);
    assert!(printed.trim_end().ends_with("exit 0"), "{printed}");
}

/// A jail in the background can't ask: the terminal belongs to the shell, which reads the typed text. The request is denied.
#[test]
fn job_in_the_background_does_not_ask() {
    let rig = JailRig::new();
    let steps = [
        r"see:\$ ",
        r#"type:$JAIL --ask --ask-timeout=1s -- sh -c "$CURL https://a.test/echo" </dev/null &\n"#,
        r"see:\$ ",
        r"type:once\n",
        "see:once: command not found",
        "see:there was no answer on the terminal",
        r"type:exit 4\n",
    ];
    let bash = ["env", "PS1=$ ", "bash", "--norc", "--noprofile", "-i"];
    let printed = run_in_terminal(&rig, User::Nobody, &steps, &bash);
    assert!(!printed.contains(QUESTION), "{printed}");
    assert!(printed.trim_end().ends_with("exit 4"), "{printed}");
}

/// The program sets modes of the terminal. They are in force before and after a question, and not while it waits for an answer.
#[test]
fn modes_of_the_program_do_not_change_an_answer() {
    let rig = JailRig::new();
    let program = rig.scratch().write("modes.py", MODES);
    let command = format!("exec $JAIL --ask -- /usr/bin/python3 {program}");
    let steps = [
        PROMPT,
        r"type:no\n",
        "see:denied on the terminal",
        PROMPT,
        r"type:once\n",
        "see:GET b.test ",
    ];
    for user in USERS {
        let printed = run_in_terminal(&rig, user, &steps, &["sh", "-c", &command]);
        assert!(!printed.contains("GET a.test"), "{user:?}: {printed}");
    }
}

/// Makes `n` VERASE and `e` VKILL, and ignores the carriage return that ends an answer (IGNCR).
const MODES: &str = include_str!("ask/modes.py");

/// The program can't type an answer (TIOCSTI fails). If it takes the foreground back while the question waits, text that is
/// typed then is no answer, and the request is denied.
#[test]
fn program_can_not_answer_its_own_question() {
    let rig = JailRig::new();
    let program = rig.scratch().write("adversary.py", ADVERSARY);
    let command = format!("exec $JAIL --ask --ask-timeout=3s -- /usr/bin/python3 {program}");
    let steps = [
        r"see:(?s)(?=.*or deny: )(?=.*typing failed: 1\r)(?=.*taken\r)",
        r"type:always\n",
        "see:no answer on the terminal",
    ];
    for user in USERS {
        let printed = run_in_terminal(&rig, user, &steps, &["sh", "-c", &command]);
        assert!(!printed.contains("GET a.test"), "{user:?}: {printed}");
        assert!(
            printed.trim_end().ends_with("exit 0"),
            "{user:?}: {printed}"
        );
    }
}

const ADVERSARY: &str = include_str!("ask/adversary.py");

#[test]
fn ask_without_a_terminal_is_wrong_usage() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    for user in USERS {
        let output = rig.run_outside(user, &format!("setsid --wait {jail} jail --ask -- true"));
        assert_fails(&output, 2, &["no terminal to ask on", "--learn FILE"]);
    }
}

/// The jail writes answers to the list of `--ask-list`, which allows nothing by itself. So the option is an error without
/// `--ask`. `--check-list` overrides `ask` in a configuration file: only the list of `--check-list` allows then.
#[test]
fn ask_list_allows_nothing_by_itself() {
    let rig = JailRig::new();
    let scratch = rig.scratch();
    let listed = scratch.write("listed", "a.test\n");
    let answers = scratch.write("answers", "b.test\n");
    let check = ["--check-list", &listed];
    for options in [
        vec!["--check-list", &listed, "--ask-list", &answers],
        vec!["--learn", &listed, "--ask-list", &answers],
        vec!["--ask-list", &answers],
    ] {
        assert_fails(&rig.run(User::Root, &options, "true"), 2, &["--ask-list"]);
    }
    let config = scratch.write(
        "asking.toml",
        &format!("[jail]\nask = true\nask-list = \"{answers}\"\n"),
    );
    let options = [&["--config", &config], &check[..]].concat();
    let output = rig.run(User::Root, &options, "curl -sS https://b.test/");
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    assert_succeeds(&rig.run(User::Root, &options, "curl -sS https://a.test/"));
}
