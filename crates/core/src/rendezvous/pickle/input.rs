//! The bytes of a state, taken from the front: numbers, texts and times of any length a stream may claim. It takes
//! nothing that isn't there, and knows no opcodes.

use super::item::Span;
use crate::rendezvous::error::StateError;
use crate::rendezvous::time::WallTime;

pub(super) struct Input<'a> {
    bytes: &'a [u8],
    next: usize,
    /// Where the opcode is that is being carried out.
    pub(super) at: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes, next: 0, at: 0 }
    }

    pub(super) fn opcode(&mut self) -> Result<u8, StateError> {
        self.at = self.next;
        self.byte()
    }

    /// How many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.next
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], StateError> {
        let left = self.left();
        match usize::try_from(len) {
            Ok(len) if len <= left => {
                let taken = &self.bytes[self.next..self.next + len];
                self.next += len;
                Ok(taken)
            }
            _ => Err(StateError::Truncated { at: self.at, missing: len - left as u64 }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("as many bytes as were asked for"))
    }

    pub(super) fn byte(&mut self) -> Result<u8, StateError> {
        match self.bytes.get(self.next) {
            Some(byte) => {
                self.next += 1;
                Ok(*byte)
            }
            None => Err(StateError::Truncated { at: self.at, missing: 1 }),
        }
    }

    /// A frame only says how much to read ahead; like CPython we insist that there is so much, and no more.
    pub(super) fn frame(&mut self) -> Result<(), StateError> {
        let len = u64::from_le_bytes(self.array()?);
        let start = self.next;
        self.take(len)?;
        self.next = start;
        Ok(())
    }

    /// A number of any number of bytes, behind how many they are.
    pub(super) fn long(&mut self) -> Result<i64, StateError> {
        let len = self.byte()?;
        let bytes = self.take(len.into())?;
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let sign = if negative { 0xff } else { 0 };
        let (low, high) = bytes.split_at(bytes.len().min(8));
        let mut number = [sign; 8];
        number[..low.len()].copy_from_slice(low);
        let number = i64::from_le_bytes(number);
        // What is above 64 bits may only repeat the sign.
        if high.iter().any(|byte| *byte != sign) || (number < 0) != negative {
            return Err(StateError::NumberTooLarge { at: self.at });
        }
        Ok(number)
    }

    pub(super) fn text(&mut self, len: u32) -> Result<Span, StateError> {
        // A state has less than 4 GiB.
        let start = self.next as u32;
        match std::str::from_utf8(self.take(len.into())?) {
            Ok(_) => Ok(Span { start, len }),
            Err(_) => Err(StateError::BadText { at: self.at }),
        }
    }

    /// The bytes of a text.
    pub(super) fn bytes_of(&self, text: Span) -> &'a [u8] {
        &self.bytes[text.start as usize..][..text.len as usize]
    }

    pub(super) fn str_of(&self, text: Span) -> &'a str {
        std::str::from_utf8(self.bytes_of(text)).expect("a text is checked when it is read")
    }

    /// The ten bytes of a `datetime`, behind how many they are.
    pub(super) fn stamp(&mut self) -> Result<WallTime, StateError> {
        let len = self.byte()?;
        let bytes = self.take(len.into())?;
        let time = <[u8; 10]>::try_from(bytes).ok().and_then(WallTime::from_stamp);
        time.ok_or_else(|| StateError::BadTime { found: bytes[..bytes.len().min(10)].into(), at: self.at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(bytes: &[u8]) -> Result<i64, StateError> {
        let counted = [&[bytes.len() as u8], bytes].concat();
        Input::new(&counted).long()
    }

    #[test]
    fn numbers_of_any_number_of_bytes_are_read_if_they_fit_64_bits() {
        for (bytes, number) in [
            (&[][..], 0),
            (&[0xff], -1),
            (&[0x80], -128),
            (&[0x80, 0], 128),
            (&[0, 0, 0, 0x80, 0], 1 << 31),
            (&[0, 0, 0, 0, 0, 1], 1 << 40),
            (&[0xff, 0xff, 0xff, 0x7f, 0xff], -(1 << 31) - 1),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], i64::MAX),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80], i64::MIN),
            (&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 7),
            (&[0xff; 255], -1),
        ] {
            assert_eq!(long(bytes), Ok(number), "{bytes:02x?}");
        }
        for bytes in [
            &[0, 0, 0, 0, 0, 0, 0, 0x80, 0][..],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff],
            &[0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[0x7f; 255],
        ] {
            assert_eq!(long(bytes), Err(StateError::NumberTooLarge { at: 0 }), "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_claimed_but_not_there_is_not_taken() {
        let mut input = Input::new(&[255, 1, 2]);
        assert_eq!(input.long(), Err(StateError::Truncated { at: 0, missing: 253 }));
        let mut input = Input::new(&[1, 2]);
        assert_eq!(
            input.text(u32::MAX).map(|_| ()),
            Err(StateError::Truncated { at: 0, missing: u64::from(u32::MAX) - 2 })
        );
        let mut input = Input::new(&[0xff; 8]);
        assert_eq!(input.frame(), Err(StateError::Truncated { at: 0, missing: u64::MAX }));
    }
}
