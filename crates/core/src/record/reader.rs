//! Records out of bytes that come in pieces. It finds where each record ends and never looks for a next one behind damage:
//! the format has no mark to start again from.

use bytes::Bytes;

use super::{DELETED, Record, is_plausible};
use crate::error::RecordError;
use crate::limits::Limits;
use crate::value::Value;

/// Reads records, resuming where the bytes ran out.
///
/// Feed it the file from the start, in pieces of any size. A length is checked against its limit as soon as it is
/// there, and memory is taken only for bytes that came.
#[derive(Debug)]
pub struct RecordReader {
    key_len: usize,
    value_len: usize,
    position: u64,
    /// The beginning of the record at `position`, as far as it came.
    partial: Vec<u8>,
}

/// The bytes behind the last whole record: the beginning of one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Where it begins.
    pub offset: u64,
    /// How many bytes of it there are.
    pub held: usize,
    /// How many bytes it takes to get on: to the next length, or to the end of the record.
    pub need: usize,
}

/// Where a record ends, as far as its beginning tells.
enum Extent {
    Whole { key: usize, value: usize },
    Short { need: usize },
}

impl RecordReader {
    /// A reader at the start of a file.
    pub fn new(limits: &Limits) -> RecordReader {
        RecordReader {
            key_len: limits.record_key_len,
            value_len: limits.record_value_len,
            position: 0,
            partial: Vec::new(),
        }
    }

    /// The next whole record, taken off the front of `input`; `None` when `input` is used up.
    ///
    /// An error stays: there is no way past the damage.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Record>, RecordError> {
        if self.partial.is_empty() {
            match self.measure(input)? {
                Extent::Whole { key, value } => {
                    let (whole, rest) = input.split_at(8 + key + value);
                    *input = rest;
                    return Ok(Some(self.finish(&whole[4..4 + key], Value::copied(&whole[8 + key..]))));
                }
                Extent::Short { .. } => {
                    self.partial.extend_from_slice(input);
                    *input = &[];
                    return Ok(None);
                }
            }
        }
        loop {
            match self.measure(&self.partial)? {
                Extent::Whole { key, value } => {
                    let whole = Bytes::from(std::mem::take(&mut self.partial));
                    let end = 8 + key + value;
                    let value = match value < Value::SHARED_FROM {
                        true => Value::copied(&whole[8 + key..end]),
                        false => Value::shared(whole.slice(8 + key..end)),
                    };
                    return Ok(Some(self.finish(&whole[4..4 + key], value)));
                }
                Extent::Short { need } => {
                    let (taken, rest) = input.split_at(input.len().min(need - self.partial.len()));
                    if taken.is_empty() {
                        return Ok(None);
                    }
                    self.partial.extend_from_slice(taken);
                    *input = rest;
                }
            }
        }
    }

    /// How far the file is read: the end of the last whole record.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What came behind the last whole record; `None` if nothing did.
    pub fn tail(&self) -> Option<Tail> {
        let held = self.partial.len();
        match self.measure(&self.partial) {
            Ok(Extent::Short { need }) if held > 0 => Some(Tail { offset: self.position, held, need }),
            _ => None,
        }
    }

    /// Forgets the beginning of a record, to read on from [`position`](RecordReader::position). A torn tail may be cut
    /// off by a writer and another record put in its place, so it must be read anew each time.
    pub fn forget_tail(&mut self) {
        self.partial = Vec::new();
    }

    /// Passes over so many bytes of whole records that the caller has written itself.
    pub fn skip(&mut self, len: u64) {
        self.forget_tail();
        self.position += len;
    }

    fn finish(&mut self, key: &[u8], value: Value) -> Record {
        self.position += 8 + key.len() as u64 + value.len() as u64;
        match key {
            [DELETED, key @ ..] => Record::delete(key),
            key => Record::set(key, value),
        }
    }

    fn measure(&self, bytes: &[u8]) -> Result<Extent, RecordError> {
        let offset = self.position;
        let Some(key) = read_u32(bytes, 0) else { return Ok(Extent::Short { need: 4 }) };
        if key > self.key_len {
            return Err(RecordError::KeyTooLong { offset, len: key, limit: self.key_len });
        }
        let Some(name) = bytes.get(4..4 + key) else { return Ok(Extent::Short { need: 8 + key }) };
        if !is_plausible(name) {
            return Err(RecordError::BadKey { offset, key: crate::error::printable(name) });
        }
        let Some(value) = read_u32(bytes, 4 + key) else { return Ok(Extent::Short { need: 8 + key }) };
        if value > self.value_len {
            return Err(RecordError::ValueTooLong { offset, len: value, limit: self.value_len });
        }
        let need = 8 + key + value;
        Ok(if bytes.len() < need { Extent::Short { need } } else { Extent::Whole { key, value } })
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::super::{REFCOUNT, user_key};
    use super::*;

    fn reader() -> RecordReader {
        RecordReader::new(&Limits::default())
    }

    fn sample() -> (Vec<Record>, Vec<u8>) {
        let records = vec![
            Record::number(REFCOUNT, 1),
            Record::set(user_key("k"), Value::copied(b"value")),
            Record::set(user_key("empty"), Value::default()),
            Record::delete(user_key("k")),
        ];
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode_into(&mut bytes));
        (records, bytes)
    }

    fn drain(reader: &mut RecordReader, mut input: &[u8]) -> Result<Vec<Record>, RecordError> {
        let mut records = Vec::new();
        while let Some(record) = reader.next(&mut input)? {
            records.push(record);
        }
        assert!(input.is_empty());
        Ok(records)
    }

    #[test]
    fn bytes_one_at_a_time_give_the_same_records() {
        let (records, bytes) = sample();
        let mut reader = reader();
        let mut found = Vec::new();
        for byte in &bytes {
            found.extend(drain(&mut reader, std::slice::from_ref(byte)).unwrap());
        }
        assert_eq!(found, records);
        assert_eq!((reader.position(), reader.tail()), (bytes.len() as u64, None));
    }

    #[test]
    fn every_cut_of_the_last_record_is_a_torn_tail_at_its_start() {
        let (records, bytes) = sample();
        let start = bytes.len() - records[3].encoded_len();
        for cut in start + 1..bytes.len() {
            let mut reader = reader();
            assert_eq!(drain(&mut reader, &bytes[..cut]).unwrap(), records[..3]);
            let tail = reader.tail().expect("cut inside a record");
            assert_eq!((tail.offset, tail.held), (start as u64, cut - start));
            assert!(tail.need > tail.held);
            assert_eq!(drain(&mut reader, &bytes[cut..]).unwrap(), records[3..]);
        }
    }

    #[test]
    fn a_forgotten_tail_is_read_anew_from_the_position() {
        let (records, bytes) = sample();
        let mut reader = reader();
        drain(&mut reader, &bytes[..bytes.len() - 3]).unwrap();
        reader.forget_tail();
        assert_eq!(reader.tail(), None);
        let rest = &bytes[reader.position() as usize..];
        assert_eq!(drain(&mut reader, rest).unwrap(), records[3..]);
    }

    #[test]
    fn a_length_above_its_limit_is_damage_before_any_of_its_bytes_came() {
        let limits = Limits::default();
        let mut key = reader();
        let over = (limits.record_key_len as u32 + 1).to_le_bytes();
        assert_eq!(
            key.next(&mut &over[..]),
            Err(RecordError::KeyTooLong {
                offset: 0,
                len: limits.record_key_len + 1,
                limit: limits.record_key_len
            })
        );
        let mut value = reader();
        let bytes = [&b"\x02\0\0\0/k"[..], &(1u32 << 30).to_le_bytes()].concat();
        let error = RecordError::ValueTooLong { offset: 0, len: 1 << 30, limit: limits.record_value_len };
        assert_eq!(value.next(&mut &bytes[..]), Err(error));
    }

    #[test]
    fn a_long_value_at_its_limit_takes_memory_only_for_what_came() {
        let limits = Limits::default();
        let mut reader = reader();
        let bytes = [&b"\x02\0\0\0/k"[..], &(limits.record_value_len as u32).to_le_bytes(), b"abc"].concat();
        assert_eq!(drain(&mut reader, &bytes).unwrap(), []);
        assert!(reader.partial.capacity() < 1024);
        assert_eq!(reader.tail().map(|tail| tail.need), Some(10 + limits.record_value_len));
    }

    #[test]
    fn damage_is_found_at_the_same_place_however_the_bytes_are_split() {
        let (_, mut bytes) = sample();
        let at = bytes.len() as u64;
        bytes.extend_from_slice(b"\x03\0\0\0abc\x01\0\0\0v");
        let error = RecordError::BadKey { offset: at, key: "abc".into() };
        assert_eq!(drain(&mut reader(), &bytes), Err(error.clone()));
        let mut slowly = reader();
        let found = bytes.iter().find_map(|byte| drain(&mut slowly, std::slice::from_ref(byte)).err());
        assert_eq!(found, Some(error.clone()));
        assert_eq!(slowly.next(&mut &b"more"[..]), Err(error));
    }

    #[test]
    fn zeros_are_damage_and_not_endless_empty_records() {
        assert!(matches!(reader().next(&mut &[0; 64][..]), Err(RecordError::BadKey { offset: 0, .. })));
    }
}
