//! The lists of `--learn` and `--ask-list`: the hosts and ports that a program has asked for, or that were answered `always`,
//! as rules of `--allow @FILE`.
//!
//! The file is rewritten for each rule that is added, before the request goes on, so it is complete however the program exits.
//! Before each write the file is read again, so lines that were added in the meantime are kept. The program may write to the
//! directory, too, and this process reads what is hidden from the program: the directory is opened before the program starts,
//! and symbolic links in it are not followed.

mod comment;
mod list_file;
mod needed_rule;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Permissions, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use peername_intercept::authz::{HTTP_PORTS, Rule};
use peername_intercept::host::HostPort;
use peername_sys::fs::replace::replace_file;
use peername_sys::fs::text_file::explain_path;

use super::approval::Mode;
use comment::{as_comment, as_reference, is_printable};
pub(super) use list_file::NOT_PUBLIC;
use list_file::{ListFile, RuleLine};
use needed_rule::NeededRule;
pub(super) use needed_rule::{
    HTTPS_PORT, LearningNetwork, is_own_address, is_private, is_refused_by_default,
};

/// The name of the file, and the run that it is written for.
pub(super) struct LearnedList {
    mode: Mode,
    name: OsString,
    /// `@FILE` with the path as it was given, for a shell.
    reference: String,
    /// The program and its arguments, as a comment.
    command: String,
    /// Options of this run that the next one needs, too.
    options: Vec<String>,
    network: LearningNetwork,
}

impl LearnedList {
    fn render(&self, file: &ListFile) -> String {
        let mut lines: Vec<_> = file.lines.iter().collect();
        lines.sort_by(|a, b| a.text.cmp(&b.text));
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        let command = &self.command;
        let options = self.next_options(file);
        let mut text = match self.mode {
            Mode::Learn => format!(
                "# --learn: what this command and the programs that it started asked for, {now}\n\
                 # --learn: use it: peername jail {options} -- {command}\n"
            ),
            Mode::Ask => format!(
                "# --ask-list: what was answered `always`, {now}\n\
                 # --ask-list: use it with {options}\n"
            ),
        };
        let mut push = |line: &str| {
            text.push_str(line);
            text.push('\n');
        };
        for line in lines {
            line.comments.iter().for_each(|comment| push(comment));
            push(&line.text);
        }
        for comment in file.trailing.iter().chain(&file.not_public) {
            push(comment);
        }
        text
    }

    /// The options of a jail that applies the list: `--port` for each learned port that this run opened as HTTP and other runs
    /// would not ([`HTTP_PORTS`]), and the options of this run, except those with characters that are not printable.
    fn next_options(&self, file: &ListFile) -> String {
        let ports: BTreeSet<_> = file
            .lines
            .iter()
            .flat_map(|line| line.rule.named_ports())
            .filter(|port| self.network.http_ports.contains(port) && !HTTP_PORTS.contains(port))
            .collect();
        let is_all_printable = |option: &&String| option.chars().all(is_printable);
        let mut options = vec![format!("--allow {}", self.reference)];
        options.extend(ports.iter().map(|port| format!("--port {port}")));
        options.extend(self.options.iter().filter(is_all_printable).cloned());
        options.join(" ")
    }
}

/// A list, and the directory that its file is in, opened before the program starts.
pub(super) struct OpenedList {
    pub(super) list: LearnedList,
    pub(super) directory: File,
}

impl OpenedList {
    /// Reads the file, if it exists, and writes it, so that an error is reported before the program runs.
    pub(super) fn open(
        mode: Mode,
        path: &Path,
        command: &[OsString],
        options: Vec<String>,
        network: LearningNetwork,
    ) -> anyhow::Result<Self> {
        let reference = as_reference(path);
        let path = std::path::absolute(path)?;
        let directory = path.parent().context("not a file")?;
        let list = LearnedList {
            mode,
            name: path.file_name().context("not a file")?.to_owned(),
            reference,
            command: as_comment(command),
            options,
            network,
        };
        let opened = Self {
            directory: File::open(directory).map_err(|error| explain_path(&path, error))?,
            list,
        };
        let lock = opened.lock()?;
        match ListFile::read(&opened.directory, &opened.list.name)? {
            Some(file) => opened.write(&file.text, file.permissions)?,
            None => opened.write(&opened.list.render(&ListFile::default()), None)?,
        }
        drop(lock);
        Ok(opened)
    }

    pub(super) fn mode(&self) -> Mode {
        self.list.mode
    }

    /// Adds the rule that allows this destination, unless the list has one already.
    pub(super) fn add(&self, to: &HostPort) -> anyhow::Result<()> {
        let _lock = self.lock()?;
        let mut file = ListFile::read(&self.directory, &self.list.name)?.unwrap_or_default();
        let NeededRule {
            text,
            names_port,
            opens_refused,
        } = self.list.network.needed_rule(to);
        let mut rules = file.lines.iter().map(|line| &line.rule);
        if rules.any(|rule| rule.allows_tunnel(to) && (!names_port || rule.names_port())) {
            return Ok(());
        }
        let comment = format!("{NOT_PUBLIC}{text}");
        if opens_refused {
            // The rule becomes a comment, which opens nothing: the program, which is not trusted, chose the address, and its
            // request is refused.
            if file.not_public.contains(&comment) {
                return Ok(());
            }
            file.not_public.push(comment);
        } else {
            // An earlier run, in which the request was refused, may have written the comment.
            file.not_public.retain(|line| *line != comment);
            file.lines.push(RuleLine {
                comments: Vec::new(),
                rule: Rule::allow(&text)?,
                text,
            });
        }
        let text = self.list.render(&file);
        self.write(&text, file.permissions)
    }

    /// Locks the directory against other learning runs. Waits no longer than [`LOCK_LIMIT`], because the program may lock the
    /// directory, too.
    fn lock(&self) -> anyhow::Result<DirectoryLock<'_>> {
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match self.directory.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    thread::sleep(LOCK_RETRY);
                }
                locked => {
                    locked.context("flock(2) of its directory: another program holds the lock")?;
                    return Ok(DirectoryLock(&self.directory));
                }
            }
        }
    }

    /// Replaces the file; `permissions` are those that it had.
    fn write(&self, text: &str, permissions: Option<Permissions>) -> anyhow::Result<()> {
        let Self { list, directory } = self;
        replace_file(directory, &list.name, text.as_bytes(), permissions).context("writing it")
    }
}

/// A lock on the directory, until it is dropped.
struct DirectoryLock<'a>(&'a File);

impl Drop for DirectoryLock<'_> {
    fn drop(&mut self) {
        // Closing the file unlocks it as well.
        let _ = self.0.unlock();
    }
}

const LOCK_LIMIT: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::fs;

    use peername_daemon::usage::error_text::with_causes;
    use peername_intercept::authz::AccessRules;
    use peername_server::destination_list::AllowedDestination;
    use tempfile::tempdir;

    use super::list_file::is_header;
    use super::*;

    fn network() -> LearningNetwork {
        let allowed: AllowedDestination = "10.2.0.0/16:80".parse().unwrap();
        LearningNetwork {
            http_ports: [80, 443, 8080, 9000].into(),
            allowed: [allowed].into_iter().collect(),
            relayed: AccessRules::deny_others(
                ["10.3.0.7:5433", "named.test:80"]
                    .map(|rule| Rule::allow(rule).unwrap())
                    .to_vec(),
            ),
            resolve: |name| match name {
                "private.test" | "named.test" => vec![[10, 1, 0, 1].into()],
                "listed.test" => vec![[10, 2, 0, 1].into()],
                _ => vec![[11, 0, 0, 1].into()],
            },
        }
    }

    /// Learns these destinations into a file with the text `before`. Returns its text, or the error, which leaves it as it was.
    fn learn(before: Option<&str>, asked: &[&str]) -> Result<String, String> {
        let dir = tempdir().unwrap();
        let path = dir.path().join("list");
        if let Some(text) = before {
            fs::write(&path, text).unwrap();
        }
        let command = ["/usr/bin/c#\u{1b}url", "-d", "it's"].map(OsString::from);
        // The second option would end the line of the comment.
        let options = ["--extra-ca root.pem", "--extra-ca 'a\nevil.test'"];
        let options = options.map(str::to_owned).to_vec();
        let list = OpenedList::open(Mode::Learn, &path, &command, options, network());
        let result = list.map_err(|error| with_causes(&error)).map(|list| {
            for to in asked {
                list.add(&HostPort::parse(to).unwrap()).unwrap();
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        match result {
            Ok(()) => Ok(text),
            Err(error) => {
                assert_eq!(Some(&*text), before);
                Err(error)
            }
        }
    }

    fn without_header(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !is_header(line)).collect()
    }

    /// Each run reads the list, adds a rule and replaces the file.
    #[test]
    fn two_runs_lose_no_rule_of_each_other() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("list");
        thread::scope(|scope| {
            for run in ["a", "b"] {
                let path = &path;
                scope.spawn(move || {
                    let list =
                        OpenedList::open(Mode::Ask, path, &[], Vec::new(), network()).unwrap();
                    for number in 0..20 {
                        let to = format!("{run}{number}.test:443");
                        list.add(&HostPort::parse(&to).unwrap()).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(without_header(&text).len(), 40, "{text}");
    }

    #[test]
    fn list_is_sorted_and_has_the_fewest_rules() {
        let asked = [
            "b.test:443",
            "a.test:22",
            "b.test:80",
            "a.test:443",
            "b.test:8080",
            "[2600::1]:443",
            "[2600::1]:22",
            "127.0.0.1:8080",
            "localhost:443",
            "localhost:6379",
            "10.2.0.7:80",
            "10.3.0.7:5433",
            "169.254.169.254:80",
            // The same behind NAT64.
            "[64:ff9b::a9fe:a9fe]:80",
            "127.0.0.1:8080",
            "10.2.0.7:80",
            "c.test:8080",
            "c.test:8080",
            "c.test:9000",
            // The word for every host, as a name.
            "any:443",
            "any:22",
        ];
        let text = learn(None, &asked).unwrap();
        let expected = [
            "10.2.0.7",
            "10.3.0.7:5433",
            "2600::1",
            "[2600::1]:22",
            "a.test",
            "a.test:22",
            "any.",
            "any.:22",
            "b.test",
            "b.test:8080",
            "c.test:8080",
            "c.test:9000",
            "# not public, remove this beginning to allow: localhost:8080",
            "# not public, remove this beginning to allow: localhost:443",
            "# not public, remove this beginning to allow: localhost:6379",
            "# not public, remove this beginning to allow: 169.254.169.254",
            "# not public, remove this beginning to allow: 64:ff9b::a9fe:a9fe",
        ];
        assert_eq!(without_header(&text), expected);
        let header: Vec<_> = text.lines().take(2).collect();
        let options = " --port 9000 --extra-ca root.pem -- '/usr/bin/c#?url' -d ";
        assert!(header[1].contains(options), "{text}");
        assert!(header[1].contains(" --allow @/"), "{text}");
    }

    #[test]
    fn private_host_that_no_certificate_proves_takes_a_rule_with_its_port() {
        let asked = [
            "private.test:80",
            "private.test:443",
            "private.test:8080",
            "private.test:22",
            "listed.test:80",
            "listed.test:80",
            "named.test:80",
            "public.test:80",
        ];
        let text = learn(None, &asked).unwrap();
        let expected = [
            "listed.test:80",
            "named.test:80",
            "private.test",
            "public.test",
            "# not public, remove this beginning to allow: private.test:80",
            "# not public, remove this beginning to allow: private.test:8080",
            "# not public, remove this beginning to allow: private.test:22",
        ];
        assert_eq!(without_header(&text), expected);
        // Without TLS, a rule for the host without its port does not allow the request.
        let text = learn(Some("listed.test\n"), &["listed.test:80"]).unwrap();
        assert_eq!(without_header(&text), ["listed.test", "listed.test:80"]);
    }

    #[test]
    fn file_that_exists_is_merged_and_keeps_its_rules_and_comments() {
        let before = "# mine\n*.b.test\n\n# the registry\na.test/pub ; only this\n# end\n";
        let text = learn(Some(before), &["x.b.test:443", "a.test:443", "x.b.test:22"]).unwrap();
        let expected = [
            "# mine",
            "*.b.test",
            "a.test",
            "# the registry",
            "a.test/pub ; only this",
            "x.b.test:22",
            "# end",
        ];
        assert_eq!(without_header(&text), expected);
        assert_eq!(learn(Some(&text), &["a.test:80"]).unwrap(), text);
        let marked = format!("\u{feff}{before}");
        assert!(learn(Some(&marked), &["a.test:80"]).is_ok());
    }

    #[test]
    fn comment_of_a_refused_address_is_not_repeated() {
        let refused = format!("{NOT_PUBLIC}localhost:22\n");
        let before = format!("{refused}a.test\n");
        let text = learn(Some(&before), &["localhost:22", "b.test:443"]).unwrap();
        assert_eq!(
            without_header(&text),
            ["a.test", "b.test", refused.trim_end()]
        );
    }

    #[test]
    fn file_that_is_no_list_is_refused_and_not_touched() {
        let error = learn(Some("a.test\nroot:x:0:0\n"), &["a.test:443"]).unwrap_err();
        assert!(
            error.contains("line 2") && !error.contains("root"),
            "{error}"
        );
    }
}
