//! A list of all keys at one moment, as many as there may be: printed a sheet at a time as it is sent, and before a key
//! comes or goes that is on a sheet not printed yet. Until then a list costs nothing but a place for each sheet, and all
//! who have asked in between share them.

use std::collections::VecDeque;
use std::sync::OnceLock;

use triomphe::Arc;

use crate::value::Value;

/// The keys of one of the store's tables, as they travel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sheet {
    /// Which table.
    pub(super) table: usize,
    pub(super) printed: OnceLock<Value>,
}

impl Sheet {
    pub(super) fn of(table: usize) -> Arc<Sheet> {
        Arc::new(Sheet { table, printed: OnceLock::new() })
    }
}

/// The keys of a store at one moment, still to be printed: [`Engine::print_keys`](super::Engine::print_keys).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    pub(super) count: usize,
    /// Bytes of all keys together, as they travel.
    pub(super) len: usize,
    pub(super) sheets: VecDeque<Arc<Sheet>>,
}

impl Listing {
    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many bytes printing all of it gives.
    pub fn printed_len(&self) -> usize {
        self.len
    }

    /// What it costs to hold it, roughly: its share of what is printed already.
    pub fn held(&self) -> usize {
        let share = |sheet: &Arc<Sheet>| {
            let printed = sheet.printed.get().map_or(0, |printed| printed.len());
            size_of::<Arc<Sheet>>() + printed / Arc::count(sheet)
        };
        self.sheets.iter().map(share).sum()
    }
}
