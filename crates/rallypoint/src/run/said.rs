//! What was said by a flag or by its variable, and what becomes of it where it would have no effect: nothing that was typed
//! is ignored. A variable may have been set for other commands than this one, so of that it is only said.

use std::fmt;

use super::Refused;
use super::python::variable_of;

/// A value that was given.
#[derive(Debug, Clone)]
pub(super) struct Said<T> {
    pub(super) value: T,
    pub(super) flag: &'static str,
    /// On the command line, and not by its variable.
    pub(super) typed: bool,
}

impl<T: fmt::Display> Said<T> {
    /// The same, of which only the text is of interest.
    pub(super) fn as_text(&self) -> Said<String> {
        Said { value: self.value.to_string(), flag: self.flag, typed: self.typed }
    }

    /// It can't be honoured beside something else that was said.
    pub(super) fn idle(&self, why: &str, warnings: &mut Vec<String>) -> Result<(), Refused> {
        match self.typed {
            true => Err(Refused::usage(format!("{self} can't be honoured: {why}"))),
            false => {
                self.ignored(why, warnings);
                Ok(())
            }
        }
    }

    /// The same where scripts in common use have both, and torchrun takes them.
    pub(super) fn ignored(&self, why: &str, warnings: &mut Vec<String>) {
        warnings.push(format!("{self} has no effect: {why}"));
    }
}

/// As it was said: `--nnodes 2`, `PET_NNODES=2`.
impl<T: fmt::Display> fmt::Display for Said<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.to_string();
        match (self.typed, value.as_str()) {
            (true, "") => f.write_str(self.flag),
            (true, value) => write!(f, "{} {value}", self.flag),
            (false, "") => write!(f, "{}=1", variable_of(self.flag)),
            (false, value) => write!(f, "{}={value}", variable_of(self.flag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_refused_and_a_variable_is_warned_of() {
        let mut said = Said { value: 2, flag: "--node-rank", typed: true };
        let mut warnings = Vec::new();
        let refused = said.idle("why", &mut warnings).unwrap_err();
        assert_eq!((refused.code, refused.text.as_str()), (2, "--node-rank 2 can't be honoured: why"));
        assert!(warnings.is_empty());
        said.typed = false;
        said.idle("why", &mut warnings).unwrap();
        assert_eq!(warnings, ["PET_NODE_RANK=2 has no effect: why"]);
    }

    #[test]
    fn a_switch_is_named_without_a_value() {
        let said = |typed| Said { value: "", flag: "--no-python", typed }.to_string();
        assert_eq!((said(true), said(false)), ("--no-python".into(), "PET_NO_PYTHON=1".into()));
    }
}
