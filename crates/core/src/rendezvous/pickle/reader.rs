//! Reads a state from a pickle. The reader has a stack and a memo, as in Python. It creates no Python objects: dicts,
//! sets and nodes are entries of tables.
//!
//! The reader executes one opcode after the other without recursion, so deep nesting can't overflow the call stack.
//! `objects` checks the attributes of nodes and states.

use super::{StateError, objects, opcode as op};
use crate::counted;
use crate::error::printable;
use crate::limits::Limits;
use crate::rendezvous::state::{NodeDesc, State};
use crate::rendezvous::time::WallTime;

/// A value on the stack, in the memo, in a dict or in a set.
#[derive(Clone, Copy)]
pub(super) enum Item<'a> {
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    /// The 10 bytes of a `datetime`. A state contains no other `bytes` object.
    Stamp(WallTime),
    /// The name of one of [`CLASSES`].
    Class(&'a str),
    NoArguments,
    /// `(0, 0, 0)`
    DeltaArguments,
    /// A `timedelta` of 0.
    ZeroDelta,
    /// `(timedelta,)`
    ZoneArguments,
    Utc,
    /// `(bytes, timezone)`, or `(bytes,)` from agents before torch 2.6.
    TimeArguments(WallTime),
    Time(WallTime),
    /// Index into [`Reader::containers`].
    Dict(usize),
    /// Index into [`Reader::containers`].
    Set(usize),
    /// Index into [`Reader::nodes`].
    Node(usize),
    State,
}

// With this size, the bounds below and the default limits, no list of items exceeds 4 MiB.
const _: () = assert!(size_of::<Item<'_>>() == 24);

/// The classes that a state may name, each with its module.
const CLASSES: [(&str, &str); 5] = [
    (op::TORCH_MODULE, "_RendezvousState"),
    (op::TORCH_MODULE, "_NodeDesc"),
    ("datetime", "datetime"),
    ("datetime", "timezone"),
    ("datetime", "timedelta"),
];

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// The position of the next byte.
    next: usize,
    /// The position of the current opcode.
    at: usize,
    pub(super) limits: &'a Limits,
    stack: Vec<Item<'a>>,
    memo: Vec<Item<'a>>,
    /// Members of sets, or alternating keys and values of dicts. `None` once a dict has become the attributes of an
    /// object.
    pub(super) containers: Vec<Option<Vec<Item<'a>>>>,
    /// The number of items in all containers.
    item_count: usize,
    /// `None` until a node has its attributes.
    pub(super) nodes: Vec<Option<NodeDesc>>,
    has_state: bool,
    /// `None` until the state has its attributes.
    state: Option<State>,
    /// Whether the input contains something that only torch before 2.6 writes.
    is_old: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: &'a Limits) -> Reader<'a> {
        Reader {
            bytes,
            next: 0,
            at: 0,
            limits,
            stack: Vec::new(),
            memo: Vec::new(),
            containers: Vec::new(),
            item_count: 0,
            nodes: Vec::new(),
            has_state: false,
            state: None,
            is_old: false,
        }
    }

    /// Reads the whole input.
    pub(super) fn read(mut self) -> Result<State, StateError> {
        let [first] = self.array()?;
        if first != op::PROTO {
            return Err(self.malformed(format!("first byte {first:#04x} does not begin a pickle (0x80)")));
        }
        let [protocol] = self.array()?;
        if !matches!(protocol, 4 | 5) {
            return Err(self.malformed(format!("pickle protocol {protocol}, not 4 or 5,")));
        }
        loop {
            self.at = self.next;
            match self.array()? {
                [op::STOP] => return self.stop(),
                [code] => self.execute(code)?,
            }
        }
    }

    fn execute(&mut self, code: u8) -> Result<(), StateError> {
        let item = match code {
            // A frame starts with its length. Like CPython, this reader refuses a frame that is longer than the
            // remaining input.
            op::FRAME => {
                let len = u64::from_le_bytes(self.array()?);
                return self.check_remaining(len);
            }
            op::MEMOIZE => {
                self.memo.push(self.top()?);
                // CPython memoizes 6 objects for a node and its heartbeat, and 3 for each further copy of the node.
                return self.check_bound(self.memo.len(), 12, "memo entries");
            }
            op::SET_ITEM => {
                let entry = self.operands::<2>()?;
                return self.add_items(code, entry.to_vec());
            }
            op::SET_ITEMS | op::ADD_ITEMS => {
                let items = self.take_above_mark()?;
                return self.add_items(code, items);
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
                let found = self.memo.get(index as usize).copied();
                found.ok_or_else(|| self.malformed("a reference to a missing memo entry"))?
            }
            op::EMPTY_TUPLE => Item::NoArguments,
            op::TUPLE1 => self.tuple::<1>()?,
            op::TUPLE2 => self.tuple::<2>()?,
            op::TUPLE3 => self.tuple::<3>()?,
            op::EMPTY_DICT => Item::Dict(self.container()?),
            op::EMPTY_SET => Item::Set(self.container()?),
            op::STACK_GLOBAL => self.class()?,
            op::NEW_OBJ | op::REDUCE => self.call(code)?,
            code => return Err(self.malformed(format!("unknown opcode {code:#04x}"))),
        };
        self.stack.push(item);
        // A pickler that does not split dicts into batches puts a whole dict on the stack, which is two items per node.
        self.check_bound(self.stack.len(), 2, "items on the stack")
    }

    // ---- errors ----

    pub(super) fn malformed(&self, what: impl Into<String>) -> StateError {
        StateError::Malformed { what: what.into(), at: self.at }
    }

    /// Fails if `count` exceeds `limit`.
    pub(super) fn check_limit(&self, count: usize, limit: usize, what: &str) -> Result<(), StateError> {
        if count <= limit { Ok(()) } else { Err(self.malformed(format!("more than {limit} {what}"))) }
    }

    /// Fails if `count` exceeds what the largest state needs: `per_node` for each node, plus 1024. This bounds the
    /// memory that a hostile input can make the reader allocate.
    fn check_bound(&self, count: usize, per_node: usize, what: &str) -> Result<(), StateError> {
        let limit = self.limits.state_nodes.saturating_mul(per_node).saturating_add(1024);
        self.check_limit(count, limit, what)
    }

    // ---- input ----

    /// Fails if fewer than `len` bytes remain.
    fn check_remaining(&self, len: u64) -> Result<(), StateError> {
        match len.saturating_sub((self.bytes.len() - self.next) as u64) {
            0 => Ok(()),
            missing => {
                let missing = counted(missing, "byte");
                Err(self.malformed(format!("the state ends {missing} too early for the opcode")))
            }
        }
    }

    fn take(&mut self, len: u32) -> Result<&'a [u8], StateError> {
        self.check_remaining(len.into())?;
        let taken = &self.bytes[self.next..][..len as usize];
        self.next += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let bytes = self.take(N as u32)?;
        Ok(bytes.try_into().expect("take returns the requested number of bytes"))
    }

    /// Reads a length or an index of 4 bytes or 1 byte.
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
        time.map(Item::Stamp).ok_or_else(|| self.malformed("bytes that are not a time"))
    }

    // ---- stack and containers ----

    /// Returns the top of the stack. Items below the last MARK are not accessible.
    fn top(&self) -> Result<Item<'a>, StateError> {
        match self.stack.last() {
            None | Some(Item::Mark) => Err(self.malformed("nothing on the stack for the opcode")),
            Some(item) => Ok(*item),
        }
    }

    /// Pops the last `N` items from the stack.
    fn operands<const N: usize>(&mut self) -> Result<[Item<'a>; N], StateError> {
        let mut items = [Item::None; N];
        for item in items.iter_mut().rev() {
            *item = self.top()?;
            self.stack.pop();
        }
        Ok(items)
    }

    /// Pops the items above the last MARK, and the MARK.
    fn take_above_mark(&mut self) -> Result<Vec<Item<'a>>, StateError> {
        let mark = self.stack.iter().rposition(|item| matches!(item, Item::Mark));
        let mark = mark.ok_or_else(|| self.malformed("no mark on the stack for the opcode"))?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    /// Creates a container and returns its index.
    fn container(&mut self) -> Result<usize, StateError> {
        // A pickler without a memo writes each node again for each of the two dicts and two sets, and each copy has a
        // dict of attributes.
        self.check_bound(self.containers.len() + 1, 4, "containers")?;
        self.containers.push(Some(Vec::new()));
        Ok(self.containers.len() - 1)
    }

    /// Adds items to the dict or set on top of the stack. For a dict, keys and values alternate.
    fn add_items(&mut self, code: u8, items: Vec<Item<'a>>) -> Result<(), StateError> {
        let (index, step) = match (self.top()?, code) {
            (Item::Dict(index), op::SET_ITEM | op::SET_ITEMS) => (index, 2),
            (Item::Set(index), op::ADD_ITEMS) => (index, 1),
            _ => return Err(self.malformed("entries for something other than a dict or a set")),
        };
        if !items.len().is_multiple_of(step) {
            return Err(self.malformed("a key without a value"));
        }
        let can_be_key = |item: &Item<'_>| match *item {
            Item::Text(_) => true,
            // Python can't hash a node without attributes.
            Item::Node(index) => self.nodes[index].is_some(),
            _ => false,
        };
        if !items.iter().step_by(step).all(can_be_key) {
            return Err(self.malformed("a key other than a str or a complete node"));
        }
        // A state has two dicts and two sets of nodes, which makes 6 items per node. Attributes of objects under
        // construction fit into the constant part of the bound.
        self.item_count += items.len();
        self.check_bound(self.item_count, 6, "items in dicts and sets")?;
        match &mut self.containers[index] {
            Some(existing) if existing.is_empty() => *existing = items,
            Some(existing) => existing.extend(items),
            // No pickler changes the attributes of an object after it was built.
            None => return Err(self.malformed("a change to the attributes of an object")),
        }
        Ok(())
    }

    // ---- objects ----

    /// Accepts one of [`CLASSES`] by name. The reader imports nothing.
    fn class(&mut self) -> Result<Item<'a>, StateError> {
        let [Item::Text(module), Item::Text(name)] = self.operands()? else {
            return Err(self.malformed("something other than the name of a class"));
        };
        match CLASSES.contains(&(module, name)) {
            true => Ok(Item::Class(name)),
            false => {
                let (module, name) = (printable(module.as_bytes()), printable(name.as_bytes()));
                Err(self.malformed(format!("unknown class {module}.{name}")))
            }
        }
    }

    fn tuple<const N: usize>(&mut self) -> Result<Item<'a>, StateError> {
        Ok(match self.operands::<N>()?[..] {
            [Item::Int(0), Item::Int(0), Item::Int(0)] => Item::DeltaArguments,
            // No version of torch writes another time zone, so this state was not written by an agent.
            [Item::Int(_), Item::Int(_), Item::Int(_)] => return Err(self.malformed("a zone other than UTC")),
            [Item::ZeroDelta] => Item::ZoneArguments,
            [Item::Stamp(time), Item::Utc] => Item::TimeArguments(time),
            [Item::Stamp(time)] => {
                self.is_old = true;
                Item::TimeArguments(time)
            }
            _ => return Err(self.malformed("something other than the arguments of a time")),
        })
    }

    /// Returns the item that stands for one of the five constructor calls in a state. The reader calls nothing.
    fn call(&mut self, code: u8) -> Result<Item<'a>, StateError> {
        let [class, arguments] = self.operands()?;
        match (code, class, arguments) {
            (op::NEW_OBJ, Item::Class("_NodeDesc"), Item::NoArguments) => {
                self.check_bound(self.nodes.len() + 1, 4, "nodes")?;
                self.nodes.push(None);
                Ok(Item::Node(self.nodes.len() - 1))
            }
            (op::NEW_OBJ, Item::Class("_RendezvousState"), Item::NoArguments) if !self.has_state => {
                self.has_state = true;
                Ok(Item::State)
            }
            (op::REDUCE, Item::Class("datetime"), Item::TimeArguments(time)) => Ok(Item::Time(time)),
            (op::REDUCE, Item::Class("timedelta"), Item::DeltaArguments) => Ok(Item::ZeroDelta),
            (op::REDUCE, Item::Class("timezone"), Item::ZoneArguments) => Ok(Item::Utc),
            _ => Err(self.malformed("a call that no state contains")),
        }
    }

    /// Gives an object its attributes.
    fn build(&mut self) -> Result<(), StateError> {
        let [Item::Dict(index)] = self.operands()? else {
            return Err(self.malformed("attributes that are not a dict"));
        };
        let taken = self.containers[index].take();
        let attributes = taken.ok_or_else(|| self.malformed("attributes that two objects share"))?;
        self.item_count -= attributes.len();
        match self.top()? {
            Item::Node(index) if self.nodes[index].is_none() => {
                self.nodes[index] = Some(objects::node(self, &attributes)?);
            }
            Item::State if self.state.is_none() => {
                let (state, is_old) = objects::state(self, &attributes)?;
                self.is_old |= is_old;
                self.state = Some(state);
            }
            _ => return Err(self.malformed("attributes for something other than a new state or node")),
        }
        Ok(())
    }

    fn stop(mut self) -> Result<State, StateError> {
        let [Item::State] = self.operands()? else {
            return Err(self.malformed("a pickle of something other than a state"));
        };
        if !self.stack.is_empty() {
            return Err(self.malformed("items below the state on the stack"));
        }
        if self.next < self.bytes.len() {
            return Err(self.malformed("bytes after the end"));
        }
        match self.state.take() {
            // This check is the last one. So a state that is refused as old contains nothing else that is refused, and
            // Python can unpickle it safely.
            Some(_) if self.is_old => Err(StateError::OldAgent),
            Some(state) => Ok(state),
            None => Err(self.malformed("a state without attributes")),
        }
    }
}
