//! The world that a node's workers are in, in one line.

use std::fmt;

use rallypoint_core::counted;

/// What a round came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// Which job.
    pub run_id: String,
    /// Which round.
    pub round: u64,
    /// How many workers there are.
    pub workers: u64,
    /// The nodes' addresses in the order of their ranks, where they are known.
    pub nodes: Vec<String>,
    /// How many there are.
    pub group_world_size: u64,
    /// This node's rank.
    pub group_rank: u64,
    /// The ranks of its workers: the first, and how many.
    pub ranks: (u64, u64),
    /// Where rank 0 is reached.
    pub master: String,
    /// The Python interpreter of this node's workers, if they have one.
    pub interpreter: Option<String>,
    /// How often this node has restarted its workers after a failure.
    pub restarts: u32,
}

/// So many nodes are named.
const NAMED: usize = 8;

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} on {}, this is node {} with ",
            self.run_id,
            counted(self.workers, "worker"),
            counted(self.group_world_size, "node"),
            self.group_rank
        )?;
        match self.ranks {
            (first, 1) => write!(f, "rank {first}")?,
            (first, count) => write!(f, "ranks {first} to {}", first + count - 1)?,
        }
        write!(f, "; master {}", self.master)?;
        if let Some(interpreter) = &self.interpreter {
            write!(f, "; interpreter {interpreter}")?;
        }
        if self.group_world_size > 1 && !self.nodes.is_empty() {
            let more = self.nodes.len().saturating_sub(NAMED);
            let named: Vec<_> =
                self.nodes.iter().take(NAMED).map(|node| node.escape_debug().to_string()).collect();
            write!(f, "; nodes {}", named.join(", "))?;
            if more > 0 {
                write!(f, " and {more} more")?;
            }
        }
        if self.restarts > 0 {
            write!(f, "; restart {}", self.restarts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_told_in_one_line() {
        let mut world = World {
            run_id: "job".into(),
            round: 0,
            workers: 1,
            nodes: vec!["a".into()],
            group_world_size: 1,
            group_rank: 0,
            ranks: (0, 1),
            master: "a:1".into(),
            interpreter: None,
            restarts: 0,
        };
        assert_eq!(world.to_string(), "job: 1 worker on 1 node, this is node 0 with rank 0; master a:1");
        world.workers = 18;
        (world.group_world_size, world.group_rank, world.ranks, world.restarts) = (9, 1, (2, 2), 3);
        world.interpreter = Some("/venv/bin/python3".into());
        world.nodes = (0..9).map(|n| format!("n{n}")).collect();
        assert_eq!(
            world.to_string(),
            "job: 18 workers on 9 nodes, this is node 1 with ranks 2 to 3; master a:1; interpreter /venv/bin/python3; \
             nodes n0, n1, n2, n3, n4, n5, n6, n7 and 1 more; restart 3"
        );
    }
}
