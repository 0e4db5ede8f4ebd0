//! Why a command refused to start.

use crate::exit_code;

/// An error that is found before any process is started.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The exit code, which is the one of torchrun.
    pub(crate) code: u8,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    /// Returns an error for a command line that is wrong by itself.
    pub(crate) fn usage(text: String) -> Refusal {
        Refusal { code: exit_code::USAGE, text, hint: None }
    }

    /// Returns an error for a value that can't be used.
    pub(crate) fn value(text: String) -> Refusal {
        Refusal { code: exit_code::FAILURE, text, hint: None }
    }
}
