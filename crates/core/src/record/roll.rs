//! Who has the file open, who has been, and whose it is: the keys of the stores themselves. It only works out what is to
//! be written and whether the file is to be removed.

use super::{CLEANUP, REFCOUNT, RUN_ID, Record, Replay};
use crate::error::printable;
use crate::value::Value;

/// What an instance has to do when it closes the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// To be written, in this order.
    pub records: [Record; 2],
    /// Whether it is the last one out, who removes the file.
    pub last: bool,
}

/// Whether a file may be used for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It is that run's.
    Ours,
    /// It is nobody's yet, and holds no user's key: this record makes it that run's.
    Claim(Record),
    /// It was left by somebody else: the run named, or one that named none but left keys.
    Stale(Option<String>),
}

impl Replay {
    /// The record of an instance that opens the file. If the count is no number, what is there instead.
    pub fn join(&self) -> Result<Record, Value> {
        Ok(Record::number(REFCOUNT, self.sum(REFCOUNT, 1)?))
    }

    /// What an instance does that closes the file, by torch's rule: it is the last one out if nobody has the file open
    /// any more and as many have closed it as there are workers. Without a number of workers nobody ever is.
    ///
    /// If a count is no number, what is there instead.
    pub fn leave(&self, num_workers: Option<u64>) -> Result<Leaving, Value> {
        let closed = self.sum(CLEANUP, 1)?;
        let open = self.sum(REFCOUNT, -1)?;
        let all_came =
            num_workers.is_some_and(|workers| u64::try_from(closed).is_ok_and(|closed| closed >= workers));
        let records = [Record::number(CLEANUP, closed), Record::number(REFCOUNT, open)];
        Ok(Leaving { records, last: open == 0 && all_came })
    }

    /// Whether this file may be used for the run `run_id`.
    pub fn admit(&self, run_id: &str) -> Admission {
        match self.value(RUN_ID) {
            Some(found) if **found == *run_id.as_bytes() => Admission::Ours,
            Some(found) => Admission::Stale(Some(printable(found))),
            None if self.user_keys().next().is_some() => Admission::Stale(None),
            None => Admission::Claim(Record::set(RUN_ID, Value::copied(run_id.as_bytes()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::user_key;
    use super::*;

    fn join(replay: &mut Replay) {
        let record = replay.join().unwrap();
        replay.apply(record);
    }

    fn leave(replay: &mut Replay, num_workers: Option<u64>) -> bool {
        let leaving = replay.leave(num_workers).unwrap();
        leaving.records.into_iter().for_each(|record| replay.apply(record));
        leaving.last
    }

    #[test]
    fn closing_writes_the_closers_first_and_then_the_open_ones() {
        let mut replay = Replay::default();
        join(&mut replay);
        let leaving = replay.leave(Some(1)).unwrap();
        assert_eq!(leaving.records, [Record::number(CLEANUP, 1), Record::number(REFCOUNT, 0)]);
        assert!(leaving.last);
    }

    #[test]
    fn the_last_one_out_is_who_leaves_nobody_behind_after_all_came() {
        for (num_workers, instances, last) in [
            (None, 1, false),
            (Some(0), 1, true),
            (Some(1), 1, true),
            (Some(2), 1, false),
            (Some(2), 2, true),
            (Some(2), 3, true),
            (Some(u64::MAX), 1, false),
        ] {
            let mut replay = Replay::default();
            (0..instances).for_each(|_| join(&mut replay));
            for left in (0..instances).rev() {
                assert_eq!(
                    leave(&mut replay, num_workers),
                    last && left == 0,
                    "{num_workers:?} {instances} {left}"
                );
            }
        }
    }

    #[test]
    fn one_after_the_other_the_second_of_two_workers_is_last() {
        let mut replay = Replay::default();
        join(&mut replay);
        assert!(!leave(&mut replay, Some(2)));
        join(&mut replay);
        assert!(leave(&mut replay, Some(2)));
    }

    #[test]
    fn a_count_below_zero_is_nobodys_end() {
        let mut replay = Replay::default();
        replay.apply(Record::number(REFCOUNT, -1));
        join(&mut replay);
        assert!(!leave(&mut replay, Some(0)));
    }

    #[test]
    fn counts_that_are_no_numbers_are_given_back() {
        let mut replay = Replay::default();
        replay.apply(Record::set(REFCOUNT, Value::copied(b"abc")));
        assert_eq!(replay.join(), Err(Value::copied(b"abc")));
        assert_eq!(replay.leave(None), Err(Value::copied(b"abc")));
    }

    #[test]
    fn a_file_is_claimed_while_it_holds_no_users_key_and_then_known_by_its_run() {
        let mut replay = Replay::default();
        join(&mut replay);
        let Admission::Claim(claim) = replay.admit("run 1") else { panic!("an unused file can be claimed") };
        replay.apply(claim);
        assert_eq!(replay.admit("run 1"), Admission::Ours);
        assert_eq!(replay.admit("run 2"), Admission::Stale(Some("run 1".into())));

        let mut unnamed = Replay::default();
        unnamed.apply(Record::set(user_key("k"), Value::default()));
        assert_eq!(unnamed.admit("run 1"), Admission::Stale(None));
    }
}
