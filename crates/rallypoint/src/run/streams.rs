//! Parsers for the values of `--redirects`, `--tee`, `--local-ranks-filter` and the `--duplicate-…-filters` flags.

use std::collections::BTreeMap;

use rallypoint_agent::{PerRank, Streams};

use crate::python;
use crate::refusal::Refusal;

/// Parses the streams of all workers (`3`), or of each local rank (`0:3,1:2`). A stream number is the sum of 1 for
/// stdout and 2 for stderr. Torch accepts only local ranks of one digit; we accept longer ones.
pub(super) fn parse_streams(flag: &str, text: &str) -> Result<PerRank<Streams>, Refusal> {
    if let Some(streams) = parse_digit(text) {
        return Ok(PerRank::All(streams));
    }
    let entry = |entry: &str| {
        let (rank, streams) = entry.split_once(':')?;
        let is_rank = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
        Some((is_rank.then(|| rank.parse().ok()).flatten()?, parse_digit(streams)?))
    };
    match text.split(',').map(entry).collect::<Option<BTreeMap<u32, Streams>>>() {
        Some(ranks) => Ok(PerRank::Some(ranks)),
        None => Err(Refusal::value(format!(
            "{flag} {text:?} must be 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or LOCAL_RANK:STREAMS,… \
             (example: 0:3,1:2)"
        ))),
    }
}

fn parse_digit(text: &str) -> Option<Streams> {
    let number = ["0", "1", "2", "3"].iter().position(|known| *known == text)?;
    Some(Streams { stdout: number & 1 != 0, stderr: number & 2 != 0 })
}

/// Parses a comma-separated list of local ranks. Returns `None`, which means all local ranks, if the text is empty.
pub(super) fn parse_ranks(text: &str) -> Result<Option<Vec<u32>>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let rank = |text: &str| python::int(text).ok();
    let ranks: Option<Vec<i64>> = text.split(',').map(rank).collect();
    let ranks = ranks.ok_or_else(|| {
        Refusal::value(
            "--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2"
                .into(),
        )
    })?;
    // Like torchrun, this function accepts negative ranks. No worker has one, so they are dropped.
    Ok(Some(ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()))
}

/// Parses a comma-separated list of texts. `,,` stands for a comma inside a text.
pub(super) fn parse_list(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ',' if chars.next_if_eq(&',').is_none() => items.push(String::new()),
            c => items.last_mut().expect("the list has an item").push(c),
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Streams = Streams { stdout: false, stderr: false };
    const BOTH: Streams = Streams { stdout: true, stderr: true };
    const ERR: Streams = Streams { stdout: false, stderr: true };

    #[test]
    fn streams_are_one_number_or_a_number_per_rank() {
        assert_eq!(parse_streams("-r", "3").unwrap(), PerRank::All(BOTH));
        let per_rank = parse_streams("-r", "0:3,1:0,10:2").unwrap();
        assert_eq!([0, 1, 2, 10].map(|rank| per_rank.of(rank)), [BOTH, NONE, NONE, ERR]);
        for text in ["", "4", "0:4", "0:", ":1", "a:1", "0:1,", "-1:1", "3 ", "+1:1"] {
            let refused = parse_streams("-r", text).unwrap_err();
            assert_eq!((refused.code, refused.text.contains("-r")), (1, true), "{text}");
        }
    }

    #[test]
    fn ranks_and_filters_are_comma_separated() {
        assert_eq!(parse_ranks("").unwrap(), None);
        assert_eq!(parse_ranks("0, 2,-1").unwrap(), Some(vec![0, 2]));
        assert!(parse_ranks("0,").is_err());
        assert_eq!(parse_list("a,b,,c,d"), ["a", "b,c", "d"]);
        assert_eq!(parse_list("x,,,y"), ["x,", "y"]);
    }
}
