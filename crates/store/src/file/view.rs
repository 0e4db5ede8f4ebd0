//! The part of a store's file that one instance has read so far.
//!
//! A view continues reading at the position where it stopped. It reads the file again from the start if the file was
//! replaced or truncated. The methods that take a [`Locked`] read or write the file under its lock.

use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rallypoint_core::Limits;
use rallypoint_core::record::{Parsed, Record, Table};

use super::Call;
use super::lock::{Locked, StoreFile, identity};
use crate::deadline::now;
use crate::error::{FileFault, Result, StoreError};

/// Each read fills the buffer of unparsed bytes to at least this length, unless the file ends earlier.
const MIN_READ_BYTES: usize = 64 * 1024;

/// The contents of the file up to the position `end`.
#[derive(Default)]
pub(super) struct View {
    pub(super) table: Table,
    /// The position after the last complete record.
    end: u64,
    /// The length of the file when it was last read. Greater than `end` if the last record is torn.
    len: u64,
    /// The file and its identity. This instance keeps the file open even between two operations. If it were closed
    /// and deleted, the system could reuse its inode number, and another file would have the same identity.
    file: Option<(Arc<File>, (u64, u64))>,
    /// Whether this instance is included in the number of open instances that the file contains.
    pub(super) is_counted: bool,
}

impl View {
    /// Returns the identity of the file and the position up to which it was read. While these are unchanged, so is the
    /// table.
    pub(super) fn position(&self) -> (Option<(u64, u64)>, u64) {
        (self.file.as_ref().map(|(_, identity)| *identity), self.end)
    }

    /// Returns the number of bytes between `end` and the end of the file. After a successful refresh, they are a torn
    /// record.
    pub(super) fn unparsed_len(&self) -> u64 {
        self.len - self.end
    }

    /// Returns whether the view has read the whole file. Records are only appended, so comparing the length suffices.
    pub(super) fn is_current(&self, metadata: &Metadata) -> bool {
        self.is_same_file(metadata) && self.end == metadata.len()
    }

    /// Returns whether the view belongs to the file with this metadata.
    pub(super) fn is_same_file(&self, metadata: &Metadata) -> bool {
        self.file.as_ref().is_some_and(|(_, own)| *own == identity(metadata))
    }

    /// Reads the records that were appended since the last call. After a timeout, the next call continues where
    /// this one stopped.
    pub(super) fn refresh(
        &mut self,
        locked: &Locked,
        file: &StoreFile,
        limits: &Limits,
        call: &Call,
    ) -> Result<()> {
        // The last poll of a call begins at the deadline of the call, so this read may use the grace after it.
        let deadline = call.deadline.grace(now());
        let metadata = &locked.metadata;
        if !self.is_same_file(metadata) || metadata.len() < self.end {
            *self = View { file: Some((Arc::clone(&locked.file), identity(metadata))), ..View::default() };
        }
        self.len = metadata.len();
        // The bytes that were read from position `end` on.
        let mut bytes = Vec::new();
        loop {
            let need = self.apply_whole_records(&mut bytes, limits).map_err(|error| StoreError::File {
                path: file.path.clone(),
                fault: FileFault::Corrupt { offset: self.end, what: error.to_string() },
            })?;
            // The rest of the file is shorter than the next record, so it is empty or a torn record.
            if need as u64 > self.unparsed_len() {
                return Ok(());
            }
            if deadline.has_passed(now()) {
                return Err(call.timeout_error(&file.path, "the file is too long to read in time"));
            }
            let (start, len) = (bytes.len(), need.max(MIN_READ_BYTES).min(self.unparsed_len() as usize));
            bytes.resize(len.max(start), 0);
            let read = locked.file.read_exact_at(&mut bytes[start..], self.end + start as u64);
            read.map_err(|error| file.system_error("read", error))?;
        }
    }

    /// Removes the complete records from the front of `bytes` and applies them to the table. Returns the minimum length
    /// of the next record.
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

    /// Removes a torn record from the end of the file. This process has the exclusive lock, so the writer of the record
    /// has died or failed.
    pub(super) fn truncate_torn_record(&mut self, locked: &Locked, file: &StoreFile) -> Result<()> {
        let (bytes, end) = (self.unparsed_len(), self.end);
        if bytes > 0 {
            tracing::warn!(path = %file.path.display(), bytes, end, "truncated a torn record");
            locked.file.set_len(end).map_err(|error| file.system_error("truncate", error))?;
            self.len = end;
        }
        Ok(())
    }

    /// Appends records to the file with one write. A process that is killed during the write leaves at most one torn
    /// record.
    pub(super) fn append(&mut self, locked: &Locked, file: &StoreFile, records: Vec<Record>) -> Result<()> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode_into(&mut bytes));
        if let Err(error) = locked.file.write_all_at(&bytes, self.end) {
            // A torn record would block every torch process that reads the file. If it cannot be removed here, the next
            // of our writers removes it.
            let _ = locked.file.set_len(self.end);
            return Err(file.system_error("write to", error));
        }
        self.end += bytes.len() as u64;
        self.len = self.end;
        records.into_iter().for_each(|record| record.apply_to(&mut self.table));
        Ok(())
    }
}
