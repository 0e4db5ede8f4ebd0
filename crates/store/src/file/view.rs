//! What one instance knows of the file: how far it has read and what that came to. It reads on from there, and over again
//! if the file is another one or was cut. All of it happens under a lock that the caller holds.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rallypoint_core::Limits;
use rallypoint_core::record::{Record, RecordReader, Replay};

use super::call::Call;
use super::place::{Locked, Place, identity};
use crate::error::{FileFault, FileObstacle, Result, StoreError};

/// How much is read at once.
const PIECE: u64 = 64 * 1024;

/// How many of the last bytes read are kept to know the place again.
const END: u64 = 64;

/// The file as far as it was read.
pub(super) struct View {
    reader: RecordReader,
    replay: Replay,
    /// How often what is known has changed.
    edition: u64,
    /// How long the file was then; more than was read if its end is torn.
    len: u64,
    /// Which file this is. It is kept open, without its lock, because the number of a file that nobody has open may be
    /// given to the next one, and that would look the same.
    file: Option<(Arc<File>, (u64, u64))>,
    /// The last bytes that were read. If others stand there now, the file was emptied and written anew.
    end: Vec<u8>,
    /// Whether this instance is counted in this file.
    pub(super) joined: bool,
}

impl View {
    pub(super) fn new(limits: &Limits) -> View {
        View {
            reader: RecordReader::new(limits),
            replay: Replay::default(),
            edition: 0,
            len: 0,
            file: None,
            end: Vec::new(),
            joined: false,
        }
    }

    /// Another number means that other keys or values may be there.
    pub(super) fn edition(&self) -> u64 {
        self.edition
    }

    fn apply(&mut self, record: Record) {
        self.replay.apply(record);
        self.edition += 1;
    }

    pub(super) fn replay(&self) -> &Replay {
        &self.replay
    }

    /// How many bytes behind the last whole record are no record yet.
    pub(super) fn torn(&self) -> u64 {
        self.len - self.reader.position()
    }

    /// Whether all that is in this file is known already. Records are only ever put at the end, so its length tells.
    pub(super) fn covers(&self, metadata: &Metadata) -> bool {
        self.is_of(metadata) && self.reader.position() == metadata.len()
    }

    fn is_of(&self, metadata: &Metadata) -> bool {
        self.file.as_ref().is_some_and(|(_, known)| *known == identity(metadata))
    }

    /// Reads what has come since the last time.
    pub(super) fn refresh(
        &mut self,
        locked: &Locked,
        place: &Place,
        limits: &Limits,
        call: &Call,
    ) -> Result<()> {
        let (metadata, failed) = (&locked.metadata, |error| place.failed("read", error));
        if self.covers(metadata) {
            self.len = metadata.len();
            return Ok(());
        }
        if !self.is_of(metadata) || self.end_at(&locked.file).map_err(failed)? != self.end {
            let file = Some((Arc::clone(&locked.file), identity(metadata)));
            *self = View { file, edition: self.edition + 1, ..View::new(limits) };
        }
        self.len = metadata.len();
        let read = self.read_on(&locked.file, place, call);
        self.reader.forget_tail();
        self.end = self.end_at(&locked.file).map_err(failed)?;
        read
    }

    /// The bytes before the place up to which the file was read; none if it doesn't reach up to there any more.
    fn end_at(&self, file: &File) -> io::Result<Vec<u8>> {
        let position = self.reader.position();
        let mut end = vec![0; END.min(position) as usize];
        let start = position - end.len() as u64;
        match file.read_exact_at(&mut end, start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
            read => read.map(|()| end),
        }
    }

    fn read_on(&mut self, file: &File, place: &Place, call: &Call) -> Result<()> {
        let start = self.reader.position();
        let mut at = start;
        let mut piece = vec![0; PIECE.min(self.len - at) as usize];
        while at < self.len {
            let want = piece.len().min((self.len - at) as usize);
            let got = match file.read_at(&mut piece[..want], at) {
                Ok(0) => {
                    // Cut by somebody who asked for no lock.
                    self.len = at;
                    break;
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(place.failed("read", error)),
            };
            at += got as u64;
            let mut input = &piece[..got];
            let next = loop {
                match self.reader.next(&mut input) {
                    Ok(Some(record)) => self.apply(record),
                    end => break end,
                }
            };
            next.map_err(|damage| StoreError::File {
                path: place.path().to_owned(),
                fault: FileFault::Corrupt { offset: damage.offset(), what: damage.to_string() },
            })?;
            // What it would take isn't there: not worth reading the rest of a torn record to find that out.
            if self.reader.tail().is_some_and(|tail| tail.offset + tail.need as u64 > self.len) {
                break;
            }
            // Not before a record was read, so that the next call gets further.
            if at < self.len && self.reader.position() > start && call.is_over() {
                return Err(call.gave_up(place.path(), FileObstacle::Unread { read: at, len: self.len }));
            }
        }
        Ok(())
    }

    /// Cuts off a torn tail. Whoever holds the exclusive lock knows that its writer is gone.
    pub(super) fn cut_torn_tail(&mut self, locked: &Locked, place: &Place) -> Result<()> {
        if self.torn() > 0 {
            let end = self.reader.position();
            tracing::warn!(path = %place.path().display(), bytes = self.torn(), end, "cut off a torn record");
            locked.file.set_len(end).map_err(|error| place.failed("cut off a torn record of", error))?;
            self.len = end;
        }
        Ok(())
    }

    /// Puts records at the end of the file, with one write: whoever is killed meanwhile leaves a torn tail at most, and
    /// nearly always not even that.
    pub(super) fn append(&mut self, locked: &Locked, place: &Place, records: Vec<Record>) -> Result<()> {
        debug_assert_eq!(self.torn(), 0, "a torn tail is cut off before anything is put behind it");
        let mut bytes = Vec::with_capacity(records.iter().map(Record::encoded_len).sum());
        records.iter().for_each(|record| record.encode_into(&mut bytes));
        if bytes.is_empty() {
            return Ok(());
        }
        let written = loop {
            match locked.file.write_at(&bytes, self.len) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => break written,
            }
        };
        let error = match written {
            Ok(len) if len == bytes.len() => {
                self.len += len as u64;
                self.reader.skip(len as u64);
                self.end.extend_from_slice(&bytes);
                self.end.drain(..self.end.len().saturating_sub(END as usize));
                records.into_iter().for_each(|record| self.apply(record));
                return Ok(());
            }
            Ok(_) => io::Error::from(io::ErrorKind::StorageFull),
            Err(error) => error,
        };
        // Half a record would stop every torch process. If it can't be taken back, the next writer cuts it off.
        let _ = locked.file.set_len(self.len);
        Err(place.failed("write to", error))
    }
}
