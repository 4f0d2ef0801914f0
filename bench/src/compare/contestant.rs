//! The two axes of a comparison: contestants (the rows of the tables) and cases (the tables).

/// A program that is compared: a row of the tables.
pub(crate) trait Contestant {
    /// The name in the tables.
    fn name(&self) -> &str;

    /// The first line in which the program prints its version.
    fn version(&self) -> String;

    /// The reason why the contestant is skipped. None if it can take part.
    fn skip_reason(&self) -> Option<String>;
}

/// A benchmark case, one workload with its size: a table.
pub(crate) trait Case<C> {
    /// The name in the raw results: change the name with the meaning.
    fn name(&self) -> &'static str;

    /// Whether the contestant can do this work at all.
    fn is_supported_by(&self, contestant: &C) -> bool;

    /// How many turns each contestant takes in a round; with more than one, all contestants are set up at the same
    /// time. The shorter a turn, the less can a drift of the machine's speed hit one contestant alone. A case
    /// that warms up, or measures memory at rest, has one long turn.
    fn turns(&self) -> u32 {
        1
    }
}
