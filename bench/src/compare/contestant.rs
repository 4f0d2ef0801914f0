//! The two axes of a comparison: contestants (the rows of the tables) and cases (the tables).

/// A program that is compared: a row of the tables.
pub(crate) trait Contestant {
    /// What is done in a turn.
    type Work: 'static;

    /// The name in the tables.
    fn name(&self) -> &str;

    /// The version, as a line that the program itself prints.
    fn version(&self) -> String;

    /// The reason why the contestant is skipped. None if it can take part.
    fn skip_reason(&self) -> Option<String>;

    /// Whether the contestant can do this work at all.
    fn supports(&self, work: &Self::Work) -> bool;
}

/// A benchmark case, one workload with its size: a table.
pub(crate) struct Case<W> {
    /// The name in the raw results: change the name with the meaning.
    pub(crate) name: &'static str,
    pub(crate) work: W,
    /// How many turns each contestant takes in a round; with more than one, all contestants are set up at the same
    /// time. The shorter a turn, the less a drift of the machine's speed can affect one contestant alone. A case
    /// that warms up, or measures memory at rest, has one long turn.
    pub(crate) turns: u32,
}
