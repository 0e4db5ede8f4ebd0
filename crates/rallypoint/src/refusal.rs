//! Why a command did nothing.

use crate::exit_code;

/// Why nothing was started.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The exit code: torchrun's for it.
    pub(crate) code: u8,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    /// What was typed can't be understood.
    pub(crate) fn usage(text: String) -> Refusal {
        Refusal { code: exit_code::USAGE, text, hint: None }
    }

    /// What was typed can't be done.
    pub(crate) fn value(text: String) -> Refusal {
        Refusal { code: exit_code::FAILURE, text, hint: None }
    }
}
