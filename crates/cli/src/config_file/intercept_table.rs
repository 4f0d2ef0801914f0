//! The `[intercept]` table, which a build without `intercept` refuses.

#[cfg(feature = "intercept")]
pub(crate) use included::*;
#[cfg(not(feature = "intercept"))]
pub(crate) use left_out::*;

#[cfg(feature = "intercept")]
mod included {
    pub(crate) use crate::cmd::intercept::options::Intercept;
    use crate::config_file::options_table::{Mistake, Tables};
    use crate::config_file::origin::Table;

    pub(in super::super) fn read(
        table: Tables,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<Table<Intercept>> {
        table.read_single(mistakes)
    }
}

#[cfg(not(feature = "intercept"))]
mod left_out {
    use schemars::JsonSchema;
    use serde::Serialize;

    use crate::config_file::options_table::{Mistake, Tables};
    use crate::config_file::origin::Table;

    /// The options of such a table; there are none.
    #[derive(Clone, Debug, Serialize, JsonSchema)]
    pub(crate) enum Intercept {}

    pub(in super::super) fn read(
        table: Tables,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<Table<Intercept>> {
        mistakes.push(table.left_out("intercept"));
        None
    }
}
