//! Where a proxy spends its time: perf(1) samples stacks, and each is looked through for what it was doing.
//!
//! By the clock, as virtual machines seldom have hardware counters. Stacks are unwound from their copies by
//! the tables that are made for exceptions, as the assembly below TLS keeps no frame pointers.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::load::Metric;
use crate::procfs::ProcessTree;

/// Per cent of samples with the making of keys and leaf certificates on the stack.
pub(crate) const FORGING: &str = "forging %";

/// Why nothing can be sampled. None if it can.
pub(crate) fn obstacle() -> Option<String> {
    let trial = Command::new("perf")
        .args(["record", "-e", EVENT, "-o", "/dev/null", "--", "true"])
        .stdin(Stdio::null())
        .output();
    match trial {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("perf record: {}", output.status)),
        Err(_) => Some(String::from("there is no perf (package linux-perf)")),
    }
}

/// perf at work.
pub(crate) struct Profiler {
    perf: Child,
    data: PathBuf,
    log: PathBuf,
}

impl Profiler {
    /// Begins to sample a process and its threads, new ones too.
    ///
    /// # Errors
    /// perf can't be started.
    pub(crate) fn start(proxy: ProcessTree, directory: &Path) -> Result<Self> {
        let [data, log] = ["perf.data", "perf.log"].map(|name| directory.join(name));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let perf = Command::new("perf")
            .args([
                "record",
                "-e",
                EVENT,
                "-F",
                FREQUENCY,
                "--call-graph",
                STACKS,
            ])
            .args(["-p", &proxy.root().to_string(), "-o"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("run perf")?;
        sleep(SETTLE);
        Ok(Self { perf, data, log })
    }

    /// Ends it, writes a listing of the functions that took the time to `listing`, and returns the shares.
    ///
    /// # Errors
    /// perf failed, or there are too few samples to speak of, or no stack shows what every stack of a
    /// proxy's must show now and then.
    pub(crate) fn finish(mut self, listing: &Path) -> Result<Vec<Metric>> {
        let pid = Pid::from_raw(i32::try_from(self.perf.id())?).context("perf has no number")?;
        kill_process(pid, Signal::INT).context("stop perf")?;
        self.perf.wait()?;
        let script = Command::new("perf")
            .args(["script", "--no-inline", "-F", "ip,sym", "-i"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .output()
            .context("run perf script")?;
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(
            script.status.success(),
            "perf script: {}; {said}",
            script.status
        );
        let profile = Profile::read(&String::from_utf8_lossy(&script.stdout));
        fs::write(listing, profile.listing())
            .with_context(|| format!("write {}", listing.display()))?;
        profile.shares()
    }
}

/// How often each function was at work, and what for.
#[derive(Default)]
struct Profile {
    samples: usize,
    forging: usize,
    signing: usize,
    /// Of the function at work itself.
    own: HashMap<String, usize>,
    /// Of functions anywhere on the stack.
    within: HashMap<String, usize>,
    /// The same, of stacks that forge.
    forgers: HashMap<String, usize>,
}

impl Profile {
    /// A stack is its frames' lines, innermost first, up to an empty line.
    fn read(script: &str) -> Self {
        let mut profile = Self::default();
        for stack in script.split("\n\n") {
            let frames: Vec<&str> = stack.lines().filter_map(function).collect();
            if !frames.is_empty() {
                profile.add(&frames);
            }
        }
        profile
    }

    fn add(&mut self, frames: &[&str]) {
        let is_any = |marks: &[&[&str]]| frames.iter().any(|frame| shows(frame, marks));
        let forges = is_any(FORGERS);
        self.samples += 1;
        if forges {
            self.forging += 1;
        } else if is_any(SIGNERS) {
            self.signing += 1;
        }
        *self.own.entry(frames[0].to_owned()).or_default() += 1;
        let mut distinct = frames.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for frame in distinct {
            *self.within.entry(frame.to_owned()).or_default() += 1;
            if forges {
                *self.forgers.entry(frame.to_owned()).or_default() += 1;
            }
        }
    }

    fn shares(&self) -> Result<Vec<Metric>> {
        ensure!(self.samples >= FEWEST, "only {} samples", self.samples);
        ensure!(
            self.signing > 0,
            "no stack of {} shows a handshake's signature: they can't be read",
            self.samples
        );
        Ok(vec![
            Metric::new(FORGING, self.share(self.forging)),
            Metric::new("handshake signature %", self.share(self.signing)),
            Metric::new("samples", self.samples as f64),
        ])
    }

    fn share(&self, part: usize) -> f64 {
        100.0 * part as f64 / self.samples as f64
    }

    fn listing(&self) -> String {
        let mut text = format!("{} samples\n", self.samples);
        for (title, counts) in [
            ("function itself", &self.own),
            ("and what it calls", &self.within),
        ] {
            let _ = writeln!(text, "\n     %  {title}");
            let mut functions: Vec<_> = counts.iter().collect();
            functions.sort_by(|one, other| other.1.cmp(one.1).then(one.0.cmp(other.0)));
            for (name, count) in functions.into_iter().take(LISTED) {
                let _ = writeln!(text, "{:6.2}  {name}", self.share(*count));
            }
        }
        text
    }
}

/// The name in a frame's line, which begins with an address.
fn function(line: &str) -> Option<&str> {
    let (_, name) = line.trim().split_once(' ')?;
    Some(name.trim())
}

/// Whether a name has all parts of one of the marks. Parts, because names come mangled from some perfs.
fn shows(name: &str, marks: &[&[&str]]) -> bool {
    let has_all = |mark: &&[&str]| mark.iter().all(|part| name.contains(part));
    marks.iter().any(has_all)
}

/// Making a key or a leaf certificate: whatever of it there is, whoever calls it.
const FORGERS: &[&[&str]] = &[
    &["rcgen"],
    &["peername_intercept", "mint"],
    &["peername_intercept", "leaf", "certificate"],
    &["EC_KEY_generate_key"],
    &["RSA_generate_key"],
];

/// Signing by ECDSA in aws-lc. What is not below a forger is the handshake's own.
const SIGNERS: &[&[&str]] = &[&["ECDSA_sign"], &["ecdsa_sign"], &["ECDSA_do_sign"]];

/// Of the kernel itself; it needs no hardware.
const EVENT: &str = "cpu-clock";

/// A second's. No divisor of anything that a proxy does regularly.
const FREQUENCY: &str = "4999";

/// Bytes of the stack that are copied: the frames that matter are at its end.
const STACKS: &str = "dwarf,16384";

/// For perf to be at it, generously.
const SETTLE: Duration = Duration::from_secs(1);

/// With fewer, two per cent are a handful.
const FEWEST: usize = 200;

/// Functions that are listed.
const LISTED: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_forgers_or_the_handshakes() {
        let script = "
	    1 p256_mul
	    2 aws_lc_0_41_0_ECDSA_sign
	    3 rcgen::certificate::CertificateParams::signed_by

	    1 p256_mul
	    2 aws_lc_0_41_0_ECDSA_sign
	    4 rustls::server::tls13::emit

	    5 tcp_sendmsg
	    6 [unknown]
";
        let profile = Profile::read(script);
        let counts = (profile.samples, profile.forging, profile.signing);
        assert_eq!(counts, (3, 1, 1));
        assert_eq!(profile.own["p256_mul"], 2);
        assert_eq!(profile.within["rustls::server::tls13::emit"], 1);
    }

    #[test]
    fn stacks_that_show_nothing_are_no_result() {
        let profile = Profile::read(&"\t1 [unknown]\n\n".repeat(FEWEST));
        assert_eq!(profile.samples, FEWEST);
        assert!(profile.shares().is_err());
    }
}
