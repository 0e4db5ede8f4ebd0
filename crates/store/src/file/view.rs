//! What one instance knows of the file: how far it has read, and what that came to. It reads on from there, or from the start
//! if the file is another one or was cut. All of it happens under a lock that the caller holds.

use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rallypoint_core::Limits;
use rallypoint_core::record::{Parsed, Record, Table};

use super::Call;
use super::lock::{Locked, StoreFile, identity};
use crate::deadline::now;
use crate::error::{FileFault, Result, StoreError};

/// How much is read at once, at least.
const READ_BYTES: usize = 64 * 1024;

/// The file as far as it was read.
#[derive(Default)]
pub(super) struct View {
    pub(super) table: Table,
    /// The end of the last whole record.
    end: u64,
    /// How long the file was then; more than `end` if the last record is torn.
    len: u64,
    /// Which file this is. It is kept open, without its lock, because the inode number of a file that is removed and closed may
    /// be given to the next one.
    file: Option<(Arc<File>, (u64, u64))>,
    /// Whether this instance is counted in this file.
    pub(super) is_counted: bool,
}

impl View {
    /// The file and how far it was read. The table changes only with this.
    pub(super) fn position(&self) -> (Option<(u64, u64)>, u64) {
        (self.file.as_ref().map(|(_, identity)| *identity), self.end)
    }

    /// How many bytes behind the last whole record are no record yet.
    pub(super) fn torn_len(&self) -> u64 {
        self.len - self.end
    }

    /// Whether everything in this file is known already. Records are only ever put at the end, so its length tells.
    pub(super) fn is_current(&self, metadata: &Metadata) -> bool {
        self.is_same_file(metadata) && self.end == metadata.len()
    }

    pub(super) fn is_same_file(&self, metadata: &Metadata) -> bool {
        self.file.as_ref().is_some_and(|(_, known)| *known == identity(metadata))
    }

    /// Reads what was written since the last time. A call whose time is up keeps what it has read, and the next call reads on.
    pub(super) fn refresh(
        &mut self,
        locked: &Locked,
        file: &StoreFile,
        limits: &Limits,
        call: &Call,
    ) -> Result<()> {
        // The last look of a call is at its deadline.
        let deadline = call.deadline.grace(now());
        let metadata = &locked.metadata;
        if !self.is_same_file(metadata) || metadata.len() < self.end {
            *self = View { file: Some((Arc::clone(&locked.file), identity(metadata))), ..View::default() };
        }
        self.len = metadata.len();
        // From `end` on, as far as it was read.
        let mut bytes = Vec::new();
        loop {
            let need = self.apply_whole_records(&mut bytes, limits).map_err(|error| StoreError::File {
                path: file.path.clone(),
                fault: FileFault::Corrupt { offset: self.end, what: error.to_string() },
            })?;
            // What a torn record would take isn't there, so the rest of it need not be read.
            if need as u64 > self.torn_len() {
                return Ok(());
            }
            if deadline.has_passed(now()) {
                return Err(call.timeout_error(&file.path, "it is too long to be read in that time"));
            }
            let (start, len) = (bytes.len(), need.max(READ_BYTES).min(self.torn_len() as usize));
            bytes.resize(len.max(start), 0);
            let read = locked.file.read_exact_at(&mut bytes[start..], self.end + start as u64);
            read.map_err(|error| file.system_error("read", error))?;
        }
    }

    /// Takes the whole records off the front of `bytes`. Returns how many bytes the next one needs, at least.
    fn apply_whole_records(&mut self, bytes: &mut Vec<u8>, limits: &Limits) -> Result<usize, String> {
        let mut used = 0;
        loop {
            match Record::parse(&bytes[used..], limits)? {
                Parsed::Whole(record, len) => {
                    record.apply_to(&mut self.table);
                    used += len;
                    self.end += len as u64;
                }
                Parsed::Torn(need) => {
                    bytes.drain(..used);
                    return Ok(need);
                }
            }
        }
    }

    /// Cuts off a torn tail. Under the exclusive lock, the process that wrote it must have died.
    pub(super) fn cut_torn_tail(&mut self, locked: &Locked, file: &StoreFile) -> Result<()> {
        let (bytes, end) = (self.torn_len(), self.end);
        if bytes > 0 {
            tracing::warn!(path = %file.path.display(), bytes, end, "cut off a torn record");
            locked.file.set_len(end).map_err(|error| file.system_error("cut off a torn record of", error))?;
            self.len = end;
        }
        Ok(())
    }

    /// Puts records at the end of the file, with one write: a process that is killed meanwhile leaves a torn tail at most.
    pub(super) fn append(&mut self, locked: &Locked, file: &StoreFile, records: Vec<Record>) -> Result<()> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode_into(&mut bytes));
        if let Err(error) = locked.file.write_all_at(&bytes, self.end) {
            // Half a record would stop every torch process. If it can't be taken back, the next writer cuts it off.
            let _ = locked.file.set_len(self.end);
            return Err(file.system_error("write to", error));
        }
        self.end += bytes.len() as u64;
        self.len = self.end;
        records.into_iter().for_each(|record| record.apply_to(&mut self.table));
        Ok(())
    }
}
