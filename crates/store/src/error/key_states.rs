//! What is known of the keys that somebody waited for, and how it is told.

use super::{FileObstacle, some};

/// The keys of a wait that ended, and what is known of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStates {
    /// The keys, in the order they were asked for.
    pub keys: Vec<String>,
    /// Which were there: of all keys, or of the first so many as there was time to ask for; `None` if nobody could be
    /// asked.
    pub present: Option<Vec<bool>>,
    /// Why the file could not be looked at again when the time was up; then this is what was seen last.
    pub obstacle: Option<FileObstacle>,
}

impl KeyStates {
    /// As they are at the end.
    pub(crate) fn new(keys: Vec<String>, present: Option<Vec<bool>>) -> KeyStates {
        KeyStates { keys, present, obstacle: None }
    }

    /// Whether it is known of each key.
    pub(crate) fn is_known(&self) -> bool {
        self.present.as_ref().is_some_and(|present| present.len() == self.keys.len())
    }

    /// Of each key, as far as is known, whether it was there.
    pub(crate) fn states(&self) -> impl Iterator<Item = bool> {
        self.present.iter().flatten().copied()
    }

    /// The keys that did not come, as far as is known; all, if nothing is.
    pub fn missing(&self) -> Vec<&str> {
        match &self.present {
            None => self.keys.iter().map(String::as_str).collect(),
            Some(present) => self
                .keys
                .iter()
                .zip(present)
                .filter(|(_, there)| !**there)
                .map(|(key, _)| key.as_str())
                .collect(),
        }
    }
}

impl std::fmt::Display for KeyStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(present) = &self.present else {
            return write!(f, "waited for {} (the server did not say which are there)", some(&self.keys));
        };
        let missing: Vec<_> = self.missing().into_iter().map(String::from).collect();
        let there: Vec<_> =
            self.keys.iter().zip(present).filter(|(_, there)| **there).map(|(key, _)| key.clone()).collect();
        let unasked = self.keys.len() - present.len();
        let first = if unasked > 0 { "the first " } else { "" };
        match (missing.is_empty(), there.is_empty()) {
            (false, true) => write!(f, "missing {}", some(&missing)),
            (false, false) => write!(
                f,
                "missing {} ({} of {first}{} keys there: {})",
                some(&missing),
                there.len(),
                present.len(),
                some(&there)
            ),
            (true, _) if unasked > 0 => write!(f, "the first {} keys are all there", there.len()),
            (true, _) => write!(f, "all of {} came just after the time-out", some(&there)),
        }?;
        if unasked > 0 {
            write!(f, "; the server did not say in time which of the other {unasked} are there")?;
        }
        match &self.obstacle {
            None => Ok(()),
            Some(obstacle) => write!(f, "; that was seen last, for at the end {obstacle}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(len: usize, present: &[bool]) -> String {
        let keys = (0..len).map(|n| format!("k{n}")).collect();
        KeyStates::new(keys, Some(present.to_vec())).to_string()
    }

    #[test]
    fn a_time_out_says_how_many_of_how_many_were_there() {
        assert_eq!(said(2, &[false, false]), "missing k0, k1");
        assert_eq!(said(3, &[false, true, true]), "missing k0 (2 of 3 keys there: k1, k2)");
        assert_eq!(said(2, &[true, true]), "all of k0, k1 came just after the time-out");
    }

    #[test]
    fn keys_there_was_no_time_to_ask_for_are_neither_there_nor_missing() {
        let rest = "the server did not say in time which of the other 7 are there";
        assert_eq!(said(9, &[true, false]), format!("missing k1 (1 of the first 2 keys there: k0); {rest}"));
        assert_eq!(said(9, &[false, false]), format!("missing k0, k1; {rest}"));
        assert_eq!(said(9, &[true, true]), format!("the first 2 keys are all there; {rest}"));
    }
}
