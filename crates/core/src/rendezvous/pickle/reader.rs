//! The machine that reads a state: a stack and a memo, as pickle has them, and tables instead of objects.
//!
//! It carries out one opcode after the other and never calls itself, so depth costs nothing. What an object must be made
//! of is said in `objects`.

use super::{objects, opcode as op};
use crate::error::printable;
use crate::limits::Limits;
use crate::rendezvous::error::StateError;
use crate::rendezvous::node::NodeDesc;
use crate::rendezvous::state::State;
use crate::rendezvous::time::WallTime;

/// What lies on the stack, in the memo, in a dict or in a set.
#[derive(Clone, Copy)]
pub(super) enum Item<'a> {
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    /// The ten bytes of a `datetime`; no other bytes occur.
    Stamp(WallTime),
    Class(Class),
    Tuple(Tuple),
    /// A `timedelta` of 0.
    NoDelta,
    Utc,
    Time(WallTime),
    /// Index into [`Reader::containers`].
    Dict(usize),
    /// Index into [`Reader::containers`].
    Set(usize),
    /// Index into [`Reader::nodes`].
    Node(usize),
    State,
}

// With the limits below, no list of items grows past 4 MiB.
const _: () = assert!(size_of::<Item<'_>>() == 24);

/// The five things that a state may name.
#[derive(Clone, Copy)]
pub(super) enum Class {
    State,
    Node,
    DateTime,
    TimeZone,
    TimeDelta,
}

/// The arguments of the calls that a state needs.
#[derive(Clone, Copy)]
pub(super) enum Tuple {
    Empty,
    /// `(0, 0, 0)`
    TimeDelta,
    /// `(timedelta,)`
    TimeZone,
    /// `(bytes, timezone)`; from old agents also `(bytes,)`.
    DateTime(WallTime),
}

impl Item<'_> {
    /// Returns the name of its kind, for errors.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Item::Mark => "a mark",
            Item::None => "None",
            Item::Bool(_) => "a bool",
            Item::Int(_) => "an int",
            Item::Text(_) => "a str",
            Item::Stamp(_) => "bytes",
            Item::Class(_) => "a class",
            Item::Tuple(_) => "a tuple",
            Item::NoDelta => "a timedelta",
            Item::Utc => "a timezone",
            Item::Time(_) => "a datetime",
            Item::Dict(_) => "a dict",
            Item::Set(_) => "a set",
            Item::Node(_) => "a node",
            Item::State => "a state",
        }
    }
}

/// A list with a limit: a stream that makes more than any state needs is refused before it costs memory.
pub(super) struct Bounded<T> {
    pub(super) items: Vec<T>,
    what: &'static str,
    limit: usize,
}

impl<T> Bounded<T> {
    fn new(what: &'static str, limit: usize) -> Bounded<T> {
        Bounded { items: Vec::new(), what, limit }
    }

    /// Returns the index of the new item.
    fn push(&mut self, item: T, at: usize) -> Result<usize, StateError> {
        within(self.items.len() + 1, self.limit, self.what, at)?;
        self.items.push(item);
        Ok(self.items.len() - 1)
    }
}

/// Fails if `count` is above the limit.
pub(super) fn within(count: usize, limit: usize, what: &'static str, at: usize) -> Result<(), StateError> {
    if count <= limit { Ok(()) } else { Err(StateError::Excess { what, limit, at }) }
}

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// The position of the next byte.
    next: usize,
    /// The position of the opcode that is being carried out.
    pub(super) at: usize,
    pub(super) limits: &'a Limits,
    stack: Bounded<Item<'a>>,
    memo: Bounded<Item<'a>>,
    /// Members of sets; keys and values of dicts, in turn. `None` once a dict has become the attributes of an object.
    pub(super) containers: Bounded<Option<Vec<Item<'a>>>>,
    /// How many items the containers hold.
    held: usize,
    /// `None` until a node has its attributes.
    pub(super) nodes: Bounded<Option<NodeDesc>>,
    states: Bounded<Option<State>>,
    /// Whether something was read that only torch before 2.6 writes.
    is_old: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: &'a Limits) -> Reader<'a> {
        let for_each_node =
            |count: usize, others: usize| limits.state_nodes.saturating_mul(count).saturating_add(others);
        Reader {
            bytes,
            next: 0,
            at: 0,
            limits,
            // A writer that knows no batches has a whole list on the stack, each node with a value.
            stack: Bounded::new("things on the stack", for_each_node(2, 64)),
            // CPython puts aside six things for a node and its heartbeat, and three for each further copy of the node.
            memo: Bounded::new("things put aside", for_each_node(12, 1024)),
            // Each node may be written anew in each of the four lists.
            containers: Bounded::new("containers", for_each_node(4, 64)),
            held: 0,
            nodes: Bounded::new("nodes", for_each_node(4, 64)),
            states: Bounded::new("states", 1),
            is_old: false,
        }
    }

    /// Reads all of the input.
    pub(super) fn read(mut self) -> Result<State, StateError> {
        let [found] = self.array()?;
        if found != op::PROTO {
            return Err(StateError::NotAPickle { found });
        }
        let [found] = self.array()?;
        if !matches!(found, 4 | 5) {
            return Err(StateError::Protocol { found });
        }
        loop {
            self.at = self.next;
            match self.array()? {
                [op::STOP] => return self.stop(),
                [code] => self.carry_out(code)?,
            }
        }
    }

    fn carry_out(&mut self, code: u8) -> Result<(), StateError> {
        let at = self.at;
        let item = match code {
            // A frame announces how many bytes follow. CPython refuses a shorter rest, and so does this reader.
            op::FRAME => {
                let len = u64::from_le_bytes(self.array()?);
                return self.ensure(len);
            }
            op::MEMOIZE => {
                let item = self.top("something to put aside")?;
                return self.memo.push(item, at).map(|_| ());
            }
            op::SET_ITEM => {
                let value = self.pop("a value")?;
                let key = self.pop("a key")?;
                return self.fill(true, vec![key, value]);
            }
            op::SET_ITEMS | op::ADD_ITEMS => {
                let items = self.above_mark()?;
                return self.fill(code == op::SET_ITEMS, items);
            }
            op::BUILD => return self.build(),
            op::MARK => Item::Mark,
            op::NONE => Item::None,
            op::NEW_TRUE => Item::Bool(true),
            op::NEW_FALSE => Item::Bool(false),
            op::BIN_INT1 => Item::Int(self.array::<1>()?[0].into()),
            op::BIN_INT2 => Item::Int(u16::from_le_bytes(self.array()?).into()),
            op::BIN_INT => Item::Int(i32::from_le_bytes(self.array()?).into()),
            op::LONG1 => self.long()?,
            op::SHORT_BIN_UNICODE | op::BIN_UNICODE => {
                let len = self.unsigned(code == op::BIN_UNICODE)?;
                let text = std::str::from_utf8(self.take(len)?);
                Item::Text(text.map_err(|_| self.malformed("text that is not UTF-8"))?)
            }
            op::SHORT_BIN_BYTES => self.stamp()?,
            op::BIN_GET | op::LONG_BIN_GET => {
                let index = self.unsigned(code == op::LONG_BIN_GET)?;
                let found = self.memo.items.get(index as usize).copied();
                found.ok_or_else(|| self.malformed("a reference to what was never put aside"))?
            }
            op::EMPTY_TUPLE => Item::Tuple(Tuple::Empty),
            op::TUPLE1 => self.tuple::<1>()?,
            op::TUPLE2 => self.tuple::<2>()?,
            op::TUPLE3 => self.tuple::<3>()?,
            op::EMPTY_DICT => Item::Dict(self.containers.push(Some(Vec::new()), at)?),
            op::EMPTY_SET => Item::Set(self.containers.push(Some(Vec::new()), at)?),
            op::STACK_GLOBAL => self.class()?,
            op::NEW_OBJ | op::REDUCE => self.call(code)?,
            code => return Err(StateError::UnknownOpcode { code, at }),
        };
        self.stack.push(item, at).map(|_| ())
    }

    // ---- input ----

    /// Fails if fewer than `len` bytes are left.
    fn ensure(&self, len: u64) -> Result<(), StateError> {
        let left = (self.bytes.len() - self.next) as u64;
        match len.checked_sub(left) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(StateError::Truncated { at: self.at, missing }),
        }
    }

    fn take(&mut self, len: u32) -> Result<&'a [u8], StateError> {
        self.ensure(len.into())?;
        let taken = &self.bytes[self.next..][..len as usize];
        self.next += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let bytes = self.take(N as u32)?;
        Ok(bytes.try_into().expect("as many bytes as were asked for"))
    }

    fn malformed(&self, what: &'static str) -> StateError {
        StateError::Malformed { what, at: self.at }
    }

    /// Reads a length or an index, of four bytes or of one.
    fn unsigned(&mut self, is_long: bool) -> Result<u32, StateError> {
        Ok(if is_long { u32::from_le_bytes(self.array()?) } else { self.array::<1>()?[0].into() })
    }

    fn long(&mut self) -> Result<Item<'a>, StateError> {
        let len = self.unsigned(false)?;
        let bytes = self.take(len)?;
        let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { -1 } else { 0 };
        let number = bytes.iter().rev().fold(sign, |number: i128, byte| number << 8 | i128::from(*byte));
        match i64::try_from(number) {
            Ok(number) if bytes.len() <= 16 => Ok(Item::Int(number)),
            _ => Err(self.malformed("a number that does not fit 64 bits")),
        }
    }

    fn stamp(&mut self) -> Result<Item<'a>, StateError> {
        let len = self.unsigned(false)?;
        let stamp = <[u8; 10]>::try_from(self.take(len)?).ok();
        let time = stamp.and_then(WallTime::from_stamp);
        time.map(Item::Stamp).ok_or_else(|| self.malformed("bytes that are no time"))
    }

    // ---- stack and containers ----

    fn unexpected(&self, found: Item<'_>, wanted: &'static str) -> StateError {
        StateError::Unexpected { found: found.kind(), wanted, at: self.at }
    }

    /// Returns what is on top of the stack. What is below the last MARK is out of reach.
    fn top(&self, wanted: &'static str) -> Result<Item<'a>, StateError> {
        match self.stack.items.last() {
            None | Some(Item::Mark) => Err(StateError::Unexpected { found: "nothing", wanted, at: self.at }),
            Some(item) => Ok(*item),
        }
    }

    fn pop(&mut self, wanted: &'static str) -> Result<Item<'a>, StateError> {
        let item = self.top(wanted)?;
        self.stack.items.pop();
        Ok(item)
    }

    /// Takes everything above the last MARK, and the MARK.
    fn above_mark(&mut self) -> Result<Vec<Item<'a>>, StateError> {
        let mark = self.stack.items.iter().rposition(|item| matches!(item, Item::Mark));
        let mark = mark.ok_or(StateError::Unexpected { found: "nothing", wanted: "a mark", at: self.at })?;
        let items = self.stack.items.split_off(mark + 1);
        self.stack.items.pop();
        Ok(items)
    }

    /// Moves items into the dict or set on top of the stack. A dict gets keys and values in turn.
    fn fill(&mut self, is_dict: bool, items: Vec<Item<'a>>) -> Result<(), StateError> {
        let (wanted, step) = if is_dict { ("a dict", 2) } else { ("a set", 1) };
        let index = match self.top(wanted)? {
            Item::Dict(index) if is_dict => index,
            Item::Set(index) if !is_dict => index,
            found => return Err(self.unexpected(found, wanted)),
        };
        if !items.len().is_multiple_of(step) {
            return Err(self.malformed("a key without a value"));
        }
        for key in items.iter().step_by(step) {
            match *key {
                Item::Text(_) => {}
                // Python can't hash a node before it has its attributes.
                Item::Node(index) if self.nodes.items[index].is_some() => {}
                found => return Err(self.unexpected(found, "a str or a whole node")),
            }
        }
        // Two dicts and two sets of nodes, and the attributes of objects that are being built.
        let limit = self.limits.state_nodes.saturating_mul(6).saturating_add(1024);
        self.held += items.len();
        within(self.held, limit, "things in dicts and sets", self.at)?;
        match &mut self.containers.items[index] {
            Some(held) if held.is_empty() => *held = items,
            Some(held) => held.extend(items),
            // No writer changes attributes behind an object's back.
            None => return Err(self.malformed("a change to the attributes of an object")),
        }
        Ok(())
    }

    // ---- objects ----

    /// Compares names, and looks up none.
    fn class(&mut self) -> Result<Item<'a>, StateError> {
        let name = self.pop("a name")?;
        let module = self.pop("the name of a module")?;
        let (Item::Text(module), Item::Text(name)) = (module, name) else {
            let found = if matches!(module, Item::Text(_)) { name } else { module };
            return Err(self.unexpected(found, "the name of a class"));
        };
        Ok(Item::Class(match (module, name) {
            (op::TORCH, "_RendezvousState") => Class::State,
            (op::TORCH, "_NodeDesc") => Class::Node,
            ("datetime", "datetime") => Class::DateTime,
            ("datetime", "timezone") => Class::TimeZone,
            ("datetime", "timedelta") => Class::TimeDelta,
            _ => {
                let (module, name) = (printable(module.as_bytes()), printable(name.as_bytes()));
                return Err(StateError::UnknownGlobal { module, name, at: self.at });
            }
        }))
    }

    fn tuple<const N: usize>(&mut self) -> Result<Item<'a>, StateError> {
        let mut items = [Item::None; N];
        for item in items.iter_mut().rev() {
            *item = self.pop("the arguments of a time")?;
        }
        Ok(Item::Tuple(match items[..] {
            [Item::Int(0), Item::Int(0), Item::Int(0)] => Tuple::TimeDelta,
            // It could be converted exactly, but no torch writes one: its writer is no peer of ours.
            [Item::Int(_), Item::Int(_), Item::Int(_)] => return Err(self.malformed("a zone other than UTC")),
            [Item::NoDelta] => Tuple::TimeZone,
            [Item::Stamp(time), Item::Utc] => Tuple::DateTime(time),
            [Item::Stamp(time)] => {
                self.is_old = true;
                Tuple::DateTime(time)
            }
            _ => return Err(self.unexpected(items[N - 1], "the arguments of a time")),
        }))
    }

    /// The five calls that a state needs, none of which is a call here.
    fn call(&mut self, code: u8) -> Result<Item<'a>, StateError> {
        let args = self.pop("arguments")?;
        let class = self.pop("a class")?;
        let (Item::Class(class), Item::Tuple(args)) = (class, args) else {
            let found = if matches!(class, Item::Class(_)) { args } else { class };
            return Err(self.unexpected(found, "a class and its arguments"));
        };
        match (code, class, args) {
            (op::NEW_OBJ, Class::Node, Tuple::Empty) => Ok(Item::Node(self.nodes.push(None, self.at)?)),
            (op::NEW_OBJ, Class::State, Tuple::Empty) => {
                self.states.push(None, self.at)?;
                Ok(Item::State)
            }
            (op::REDUCE, Class::DateTime, Tuple::DateTime(time)) => Ok(Item::Time(time)),
            (op::REDUCE, Class::TimeDelta, Tuple::TimeDelta) => Ok(Item::NoDelta),
            (op::REDUCE, Class::TimeZone, Tuple::TimeZone) => Ok(Item::Utc),
            _ => Err(self.malformed("a call that no state needs")),
        }
    }

    /// Gives an object its attributes.
    fn build(&mut self) -> Result<(), StateError> {
        let taken = match self.pop("a dict")? {
            Item::Dict(index) => self.containers.items[index].take(),
            found => return Err(self.unexpected(found, "a dict")),
        };
        let attributes = taken.ok_or_else(|| self.malformed("attributes that two objects share"))?;
        self.held -= attributes.len();
        match self.top("a state or a node")? {
            Item::Node(index) if self.nodes.items[index].is_none() => {
                self.nodes.items[index] = Some(objects::node(self, &attributes)?);
            }
            Item::State if self.states.items[0].is_none() => {
                let (state, is_old) = objects::state(self, &attributes)?;
                self.is_old |= is_old;
                self.states.items[0] = Some(state);
            }
            found => return Err(self.unexpected(found, "a state or a node without attributes")),
        }
        Ok(())
    }

    fn stop(mut self) -> Result<State, StateError> {
        match self.pop("a state")? {
            Item::State => {}
            found => return Err(self.unexpected(found, "a state")),
        }
        if !self.stack.items.is_empty() {
            return Err(self.malformed("more than the state at its end"));
        }
        if self.next < self.bytes.len() {
            return Err(self.malformed("bytes behind the end"));
        }
        match self.states.items.pop().flatten() {
            // Checked last: a state that is refused for its age alone is complete, and unpickling it does no harm.
            Some(_) if self.is_old => Err(StateError::OldAgent),
            Some(state) => Ok(state),
            None => Err(self.malformed("a state without attributes")),
        }
    }
}
