//! CPU profile of a proxy: perf(1) samples stacks, and each is classified by the functions on it.
//!
//! Sampling uses the clock, as virtual machines seldom have hardware counters. Stacks are copied and unwound by DWARF
//! tables, as the assembly below TLS keeps no frame pointers.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::compare::measurement::Metric;
use crate::host::procfs::ProcessTree;

/// The name of the metric: per cent of samples that generate a key or mint a leaf certificate.
pub(crate) const FORGING: &str = "forging %";

/// The reason why sampling is not possible. None if it is.
pub(crate) fn skip_reason() -> Option<String> {
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

/// A running perf process.
pub(crate) struct Profiler {
    perf: Child,
    data: PathBuf,
    log: PathBuf,
}

impl Profiler {
    /// Starts to sample a process and its threads, including new ones.
    pub(crate) fn start(proxy: ProcessTree, directory: &Path) -> Result<Self> {
        let [data, log] = ["perf.data", "perf.log"].map(|name| directory.join(name));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let perf = Command::new("perf")
            .args([
                "record",
                "-e",
                EVENT,
                "-F",
                SAMPLES_PER_SECOND,
                "--call-graph",
                CALL_GRAPH,
            ])
            .args(["-p", &proxy.root().to_string(), "-o"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("run perf")?;
        sleep(ATTACH_TIME);
        Ok(Self { perf, data, log })
    }

    /// Stops sampling, writes the functions that took the most time to `path`, and returns the shares.
    pub(crate) fn finish(mut self, path: &Path) -> Result<Vec<Metric>> {
        let pid = Pid::from_raw(i32::try_from(self.perf.id())?).context("perf has no number")?;
        kill_process(pid, Signal::INT).context("stop perf")?;
        self.perf.wait()?;
        let script = Command::new("perf")
            .args(["script", "--no-inline", "-F", "ip,sym", "-i"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .output()
            .context("run perf script")?;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(
            script.status.success(),
            "perf script: {}; {log}",
            script.status
        );
        let profile = Profile::parse(&String::from_utf8_lossy(&script.stdout));
        fs::write(path, profile.listing()).with_context(|| format!("write {}", path.display()))?;
        profile.shares()
    }
}

/// Sample counts by function and by purpose.
#[derive(Default)]
struct Profile {
    samples: usize,
    forging: usize,
    signing: usize,
    /// Samples by their innermost function.
    own: HashMap<String, usize>,
    /// Samples by every function on their stacks.
    within: HashMap<String, usize>,
    /// As `within`, but only of stacks that generate a key or mint a certificate.
    forgers: HashMap<String, usize>,
}

impl Profile {
    /// Parses the output of `perf script`: a stack is its frames' lines, innermost first, up to an empty line.
    fn parse(script: &str) -> Self {
        let mut profile = Self::default();
        for stack in script.split("\n\n") {
            let frames: Vec<&str> = stack.lines().filter_map(function_name).collect();
            if !frames.is_empty() {
                profile.add(&frames);
            }
        }
        profile
    }

    fn add(&mut self, frames: &[&str]) {
        let is_any = |patterns: &[&[&str]]| frames.iter().any(|frame| matches_any(frame, patterns));
        let forges = is_any(MINTING_FUNCTIONS);
        self.samples += 1;
        if forges {
            self.forging += 1;
        } else if is_any(SIGNING_FUNCTIONS) {
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
        ensure!(self.samples >= MIN_SAMPLES, "only {} samples", self.samples);
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
            for (name, count) in functions.into_iter().take(MAX_LISTED_FUNCTIONS) {
                let _ = writeln!(text, "{:6.2}  {name}", self.share(*count));
            }
        }
        text
    }
}

/// Parses the function name from a frame's line, which begins with an address.
fn function_name(line: &str) -> Option<&str> {
    let (_, name) = line.trim().split_once(' ')?;
    Some(name.trim())
}

/// Whether a name contains all parts of one of the patterns. Parts, because some versions of perf print mangled names.
fn matches_any(name: &str, patterns: &[&[&str]]) -> bool {
    let has_all = |pattern: &&[&str]| pattern.iter().all(|part| name.contains(part));
    patterns.iter().any(has_all)
}

/// Functions that generate a key or mint a leaf certificate.
const MINTING_FUNCTIONS: &[&[&str]] = &[
    &["rcgen"],
    &["peername_intercept", "issue_certificate"],
    &["peername_intercept", "leaf_certificate"],
    &["EC_KEY_generate_key"],
    &["RSA_generate_key"],
];

/// ECDSA signatures in aws-lc. Those that are not below a minting function belong to the handshake.
const SIGNING_FUNCTIONS: &[&[&str]] = &[&["ECDSA_sign"], &["ecdsa_sign"], &["ECDSA_do_sign"]];

/// A software event of the kernel; it needs no hardware counter.
const EVENT: &str = "cpu-clock";

/// Samples each second. A prime, so that it does not coincide with periodic work of a proxy.
const SAMPLES_PER_SECOND: &str = "4999";

/// Unwinding method, and bytes of the stack that are copied: the relevant frames are at its end.
const CALL_GRAPH: &str = "dwarf,16384";

/// How long perf takes to attach, generously.
const ATTACH_TIME: Duration = Duration::from_secs(1);

/// With fewer samples, two per cent are only a few.
const MIN_SAMPLES: usize = 200;

/// Functions that are listed in the profile.
const MAX_LISTED_FUNCTIONS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_of_minting_and_handshake_are_distinguished() {
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
        let profile = Profile::parse(script);
        let counts = (profile.samples, profile.forging, profile.signing);
        assert_eq!(counts, (3, 1, 1));
        assert_eq!(profile.own["p256_mul"], 2);
        assert_eq!(profile.within["rustls::server::tls13::emit"], 1);
    }

    #[test]
    fn profile_without_known_functions_is_an_error() {
        let profile = Profile::parse(&"\t1 [unknown]\n\n".repeat(MIN_SAMPLES));
        assert_eq!(profile.samples, MIN_SAMPLES);
        assert!(profile.shares().is_err());
    }
}
