//! The errors in a configuration file.

use peername_daemon::options::Table;
use peername_daemon::usage::UsageError;

/// All errors in a file, each with its file, line and key.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct Problems(pub(crate) Vec<String>);

impl Problems {
    /// Makes the plan of each table, or notes its errors. A table of which some keys could not be read is validated only.
    pub(crate) fn plan_tables<T, P>(
        &mut self,
        tables: &[Table<T>],
        mut new_plan: impl FnMut(&Table<T>) -> Result<P, UsageError>,
    ) -> Vec<P> {
        let mut plans = Vec::new();
        for table in tables {
            match new_plan(table) {
                Ok(_) if table.is_partial() => {}
                Ok(plan) => plans.push(plan),
                Err(errors) => self.0.extend(table.located(&errors)),
            }
        }
        plans
    }

    /// Returns the errors, if there are any.
    pub(crate) fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}
