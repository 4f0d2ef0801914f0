//! The raw results, a CSV file.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::compare::contestant::Contestant;
use crate::compare::machine::describe_machine;
use crate::compare::measurement::{Metric, ObservedSource};
use crate::compare::records::{Record, TurnId};
use crate::host::background_load::BackgroundLoad;

/// A CSV file with one line for each metric. Lines are written as soon as they are measured, so an aborted run
/// keeps its results so far.
pub(crate) struct RawResults {
    path: PathBuf,
    file: File,
}

impl RawResults {
    /// Creates a file in `directory` that begins with the conditions of the run, as comments.
    pub(crate) fn create(
        directory: &Path,
        contestants: &[impl Contestant],
        extent: &str,
    ) -> Result<Self> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let path = directory.join(format!("{}.csv", now.replace(':', "")));
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let mut results = Self { path, file };
        results.append_comment(&format!("date {now}"))?;
        results.append_comment(&describe_machine())?;
        results.append_comment(extent)?;
        for contestant in contestants {
            let line = format!("{}: {}", contestant.name(), contestant.version());
            results.append_comment(&line)?;
        }
        writeln!(
            results.file,
            "round,turn,contestant,workload,metric,value,backend_sees,others_percent,stolen_percent"
        )?;
        Ok(results)
    }

    /// Appends a line for each metric of a record.
    pub(crate) fn append(&mut self, record: &Record) -> Result<()> {
        let Record {
            turn: TurnId { round, turn },
            contestant,
            case,
            observed,
            background: BackgroundLoad { others, stolen },
            metrics,
        } = record;
        let sees = observed.map_or("-", ObservedSource::as_str);
        for Metric { name, value } in metrics {
            writeln!(
                self.file,
                "{round},{turn},{contestant},{case},{name},{value},{sees},{others:.1},{stolen:.1}"
            )?;
        }
        Ok(())
    }

    /// Appends a comment line.
    pub(crate) fn append_comment(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.file, "# {}", line.replace('\n', " "))?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
