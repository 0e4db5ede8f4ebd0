//! What lies on the reader's stack and in its memo. Sixteen bytes each and nothing to own, because a hostile stream may
//! put aside as many as there is room for; what has a size of its own is an index into the reader's tables.

use super::opcode::Global;
use crate::rendezvous::time::WallTime;

/// One thing a stream has made. There are no tuples but the four that a state needs, so nothing nests.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item {
    None,
    Bool(bool),
    Int(i64),
    Text(Span),
    /// The ten bytes of a `datetime`; no other bytes occur.
    Stamp(WallTime),
    Global(Global),
    /// `()`
    NoArgs,
    /// `(days, seconds, microseconds)`, in microseconds.
    DeltaArgs(i64),
    /// `(timedelta,)`
    ZoneArgs(i64),
    /// `(stamp, utc)`
    TimeArgs(WallTime),
    Delta(i64),
    Utc,
    Time(WallTime),
    Dict(u32),
    Set(u32),
    Node(u32),
    State,
}

/// An entry of a dict. As in Python, the later of two with the same key counts.
pub(super) type Entry = (Item, Item);

/// Where a text lies in the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

const _: () = assert!(size_of::<Item>() == 16);

impl Item {
    /// What it is, in words.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Item::None => "None",
            Item::Bool(_) => "a bool",
            Item::Int(_) => "an int",
            Item::Text(_) => "a str",
            Item::Stamp(_) => "bytes",
            Item::Global(_) => "a class",
            Item::NoArgs | Item::DeltaArgs(_) | Item::ZoneArgs(_) | Item::TimeArgs(_) => "a tuple",
            Item::Delta(_) => "a timedelta",
            Item::Utc => "a timezone",
            Item::Time(_) => "a datetime",
            Item::Dict(_) => "a dict",
            Item::Set(_) => "a set",
            Item::Node(_) => "a node",
            Item::State => "a state",
        }
    }
}
