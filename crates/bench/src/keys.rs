//! The names of the keys a run makes. They are its own, so that it can be pointed at a live job and leave no trace.

/// The keys of one run, by number.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// Names that no other run uses. The slash in front is the one torch's clients put before every key.
    pub(crate) fn of_run(run: u32) -> Keys {
        Keys { prefix: format!("/rallypoint-bench/{run:08x}/") }
    }

    /// What all names begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of key `n`; all are equally long.
    pub(crate) fn name(&self, n: usize) -> Vec<u8> {
        format!("{}{n:06}", self.prefix).into_bytes()
    }

    /// The names from `first` on.
    pub(crate) fn names(&self, first: usize, count: usize) -> Vec<Vec<u8>> {
        (first..first + count).map(|n| self.name(n)).collect()
    }
}
