//! The reason why a command refuses to start.

use crate::exit_code;

/// An error that a command finds before it starts any process.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The exit code. If torchrun reports the same error, its exit code is the same.
    pub(crate) code: u8,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    /// Returns an error with exit code 2, for wrong usage, such as missing, malformed or contradictory flags.
    pub(crate) fn usage(text: String) -> Refusal {
        Refusal { code: exit_code::USAGE, text, hint: None }
    }

    /// Returns an error with exit code 1, for a flag or variable whose value can't be used.
    pub(crate) fn value(text: String) -> Refusal {
        Refusal { code: exit_code::FAILURE, text, hint: None }
    }
}
