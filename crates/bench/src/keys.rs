//! The keys of a run. No other run or job uses them, so a run can measure a server that is in use.

/// The keys of one run, by number.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// Returns the keys of the run with this random number. They start with a slash, because torch's clients put one
    /// before every key.
    pub(crate) fn of_run(run: u32) -> Keys {
        Keys { prefix: format!("/rallypoint-bench/{run:08x}/") }
    }

    /// Returns the prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name of key `n`. All names have the same length.
    pub(crate) fn name(&self, n: usize) -> Vec<u8> {
        format!("{}{n:06}", self.prefix).into_bytes()
    }

    /// Returns the names of `count` keys, starting with `first`.
    pub(crate) fn names(&self, first: usize, count: usize) -> Vec<Vec<u8>> {
        (first..first + count).map(|n| self.name(n)).collect()
    }
}
