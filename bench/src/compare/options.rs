//! The options that every comparison has.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::compare::contestant::Case;

/// Rounds, workloads, subject and output directory.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often each measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// One short round: does everything work?
    #[arg(long, conflicts_with = "rounds")]
    pub(crate) quick: bool,
    /// Only these workloads, named as in the tables
    #[arg(long = "only", value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// The contestant to compare with the others
    #[arg(long, value_name = "NAME", default_value = "peername")]
    pub(crate) subject: String,
    /// Where to write the raw results
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub(crate) out: PathBuf,
    /// Leave out these contestants, named as in the tables
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) without: Vec<String>,
    /// Where to draw the chart [default: beside the raw results]
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
}

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// Selects those of `cases` that `--only` names; all of them if it names none.
    pub(crate) fn select_cases<'a, W>(&self, cases: &'a [Case<W>]) -> Result<Vec<&'a Case<W>>> {
        for name in &self.only {
            ensure!(
                cases.iter().any(|case| case.name == name),
                "there is no workload {name}"
            );
        }
        Ok(cases
            .iter()
            .filter(|case| self.only.is_empty() || self.only.iter().any(|name| name == case.name))
            .collect())
    }
}
