//! The machine that reads a state: a stack, marks and a memo, as pickle has them, and tables instead of objects.
//!
//! It carries out one opcode after the other and never calls itself, so depth costs nothing. What an object must be made
//! of is said in `build`.

use super::build;
use super::input::Input;
use super::item::Item;
use super::opcode::{self as op, Global};
use super::tables::{Tables, bounded};
use crate::error::printable;
use crate::limits::Limits;
use crate::rendezvous::error::StateError;
use crate::rendezvous::state::State;

/// MARKs within each other: a state's, a list's, a node's, and some more.
const MARKS: usize = 16;

pub(super) struct Reader<'a> {
    input: Input<'a>,
    limits: &'a Limits,
    stack: Vec<Item>,
    /// Heights of the stack at the MARKs that are open.
    marks: Vec<usize>,
    memo: Vec<Item>,
    tables: Tables,
    state: Progress,
    /// Whether something was read that only torch before 2.6 writes.
    is_old: bool,
    most_stack: usize,
    most_memo: usize,
}

enum Progress {
    Absent,
    New,
    Built(Box<State>),
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: &'a Limits) -> Reader<'a> {
        Reader {
            input: Input::new(bytes),
            limits,
            stack: Vec::new(),
            marks: Vec::new(),
            // CPython puts something aside every 16 bytes or so. A power of two, so that no hostile stream doubles it
            // past 2 MiB within the default limits.
            memo: Vec::with_capacity((bytes.len() / 16).next_power_of_two()),
            tables: Tables::new(limits),
            state: Progress::Absent,
            is_old: false,
            // A writer that knows no batches has a whole list on the stack, each node with a value.
            most_stack: limits.state_nodes.saturating_mul(2).saturating_add(64),
            // CPython puts aside six things for a node and its heartbeat, and three for each further copy of the node.
            most_memo: limits.state_nodes.saturating_mul(12).saturating_add(1024),
        }
    }

    /// Reads all of the input.
    pub(super) fn read(mut self) -> Result<State, StateError> {
        match self.input.opcode()? {
            op::PROTO => {}
            found => return Err(StateError::NotAPickle { found }),
        }
        let found = self.input.byte()?;
        if !op::PROTOCOLS.contains(&found) {
            return Err(StateError::Protocol { found });
        }
        loop {
            match self.input.opcode()? {
                op::STOP => return self.stop(),
                code => self.carry_out(code)?,
            }
        }
    }

    fn carry_out(&mut self, code: u8) -> Result<(), StateError> {
        let at = self.input.at;
        let item = match code {
            op::FRAME => return self.input.frame(),
            op::MEMOIZE => return self.memoize(),
            op::MARK => return self.mark(),
            op::SET_ITEM => return self.set_item(),
            op::SET_ITEMS => return self.set_items(),
            op::ADD_ITEMS => return self.add_items(),
            op::BUILD => return self.build(),
            op::NONE => Item::None,
            op::NEW_TRUE => Item::Bool(true),
            op::NEW_FALSE => Item::Bool(false),
            op::BIN_INT1 => Item::Int(self.input.byte()?.into()),
            op::BIN_INT2 => Item::Int(u16::from_le_bytes(self.input.array()?).into()),
            op::BIN_INT => Item::Int(i32::from_le_bytes(self.input.array()?).into()),
            op::LONG1 => Item::Int(self.input.long()?),
            op::SHORT_BIN_UNICODE => {
                let len = self.input.byte()?;
                Item::Text(self.input.text(len.into())?)
            }
            op::BIN_UNICODE => {
                let len = u32::from_le_bytes(self.input.array()?);
                Item::Text(self.input.text(len)?)
            }
            op::SHORT_BIN_BYTES => Item::Stamp(self.input.stamp()?),
            op::BIN_GET => {
                let index = self.input.byte()?;
                self.recalled(index.into())?
            }
            op::LONG_BIN_GET => {
                let index = u32::from_le_bytes(self.input.array()?);
                self.recalled(index)?
            }
            op::EMPTY_TUPLE => Item::NoArgs,
            op::TUPLE1 => self.tuple1()?,
            op::TUPLE2 => self.tuple2()?,
            op::TUPLE3 => self.tuple3()?,
            op::EMPTY_DICT => self.tables.new_dict(at)?,
            op::EMPTY_SET => self.tables.new_set(at)?,
            op::STACK_GLOBAL => self.global()?,
            op::NEW_OBJ => self.new_object()?,
            op::REDUCE => self.reduce()?,
            code => return Err(StateError::UnknownOpcode { code, at }),
        };
        bounded(self.stack.len(), self.most_stack, "things on the stack", at)?;
        self.stack.push(item);
        Ok(())
    }

    fn unexpected(&self, found: Item, wanted: &'static str) -> StateError {
        StateError::Unexpected { found: found.kind(), wanted, at: self.input.at }
    }

    // ---- stack and memo ----

    /// What is on top of the stack. What is below the last MARK is out of reach.
    fn top(&self, wanted: &'static str) -> Result<Item, StateError> {
        self.below(self.stack.len(), wanted)
    }

    /// What was on top of the stack at this height, if it is in reach.
    fn below(&self, height: usize, wanted: &'static str) -> Result<Item, StateError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..height].last().copied().ok_or(StateError::Nothing { wanted, at: self.input.at })
    }

    fn pop(&mut self, wanted: &'static str) -> Result<Item, StateError> {
        let item = self.top(wanted)?;
        self.stack.pop();
        Ok(item)
    }

    fn mark(&mut self) -> Result<(), StateError> {
        bounded(self.marks.len(), MARKS, "marks within each other", self.input.at)?;
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// The height of the stack at the last MARK, which is thereby closed.
    fn close_mark(&mut self) -> Result<usize, StateError> {
        self.marks.pop().ok_or(StateError::Nothing { wanted: "a mark", at: self.input.at })
    }

    fn memoize(&mut self) -> Result<(), StateError> {
        let item = self.top("something to put aside")?;
        bounded(self.memo.len(), self.most_memo, "things put aside", self.input.at)?;
        self.memo.push(item);
        Ok(())
    }

    fn recalled(&self, index: u32) -> Result<Item, StateError> {
        let found = self.memo.get(index as usize).copied();
        found.ok_or(StateError::UnknownMemo { index, at: self.input.at })
    }

    // ---- the tuples of times ----

    fn tuple1(&mut self) -> Result<Item, StateError> {
        match self.pop("a timedelta")? {
            Item::Delta(micros) => Ok(Item::ZoneArgs(micros)),
            // A datetime without a zone.
            Item::Stamp(time) => {
                self.is_old = true;
                Ok(Item::TimeArgs(time))
            }
            found => Err(self.unexpected(found, "a timedelta")),
        }
    }

    fn tuple2(&mut self) -> Result<Item, StateError> {
        let zone = self.pop("a timezone")?;
        match (self.pop("the bytes of a datetime")?, zone) {
            (Item::Stamp(time), Item::Utc) => Ok(Item::TimeArgs(time)),
            (Item::Stamp(_), found) => Err(self.unexpected(found, "a timezone")),
            (found, _) => Err(self.unexpected(found, "the bytes of a datetime")),
        }
    }

    fn tuple3(&mut self) -> Result<Item, StateError> {
        let mut numbers = [0; 3];
        for number in numbers.iter_mut().rev() {
            *number = match self.pop("an int")? {
                Item::Int(number) => i128::from(number),
                found => return Err(self.unexpected(found, "an int")),
            };
        }
        let [days, seconds, micros] = numbers;
        let micros = i64::try_from((days * 86_400 + seconds) * 1_000_000 + micros);
        micros.map(Item::DeltaArgs).map_err(|_| StateError::NumberTooLarge { at: self.input.at })
    }

    // ---- filling containers ----

    fn set_item(&mut self) -> Result<(), StateError> {
        let value = self.pop("a value")?;
        let key = self.pop("a key")?;
        match self.top("a dict")? {
            Item::Dict(dict) => self.tables.fill_dict(dict, &[key, value], self.input.at),
            found => Err(self.unexpected(found, "a dict")),
        }
    }

    fn set_items(&mut self) -> Result<(), StateError> {
        let height = self.close_mark()?;
        match self.below(height, "a dict")? {
            Item::Dict(dict) => self.tables.fill_dict(dict, &self.stack[height..], self.input.at)?,
            found => return Err(self.unexpected(found, "a dict")),
        }
        self.stack.truncate(height);
        Ok(())
    }

    fn add_items(&mut self) -> Result<(), StateError> {
        let height = self.close_mark()?;
        match self.below(height, "a set")? {
            Item::Set(set) => self.tables.fill_set(set, &self.stack[height..], self.input.at)?,
            found => return Err(self.unexpected(found, "a set")),
        }
        self.stack.truncate(height);
        Ok(())
    }

    // ---- objects ----

    fn global(&mut self) -> Result<Item, StateError> {
        let name = self.pop("a name")?;
        let module = self.pop("the name of a module")?;
        let (Item::Text(module), Item::Text(name)) = (module, name) else {
            let found = if matches!(module, Item::Text(_)) { name } else { module };
            return Err(self.unexpected(found, "the name of a class"));
        };
        let (module, name) = (self.input.bytes_of(module), self.input.bytes_of(name));
        Global::named(module, name).map(Item::Global).ok_or_else(|| StateError::UnknownGlobal {
            module: printable(module),
            name: printable(name),
            at: self.input.at,
        })
    }

    fn new_object(&mut self) -> Result<Item, StateError> {
        match self.pop("an empty tuple")? {
            Item::NoArgs => {}
            found => return Err(self.unexpected(found, "an empty tuple")),
        }
        let at = self.input.at;
        match self.pop("a class")? {
            Item::Global(Global::Node) => self.tables.new_node(at),
            Item::Global(Global::State) if matches!(self.state, Progress::Absent) => {
                self.state = Progress::New;
                Ok(Item::State)
            }
            Item::Global(Global::State) => {
                Err(StateError::Unexpected { found: "a second state", wanted: "a node", at })
            }
            found => Err(self.unexpected(found, "the class of a state or of a node")),
        }
    }

    /// The three calls that a state needs, none of which is a call here.
    fn reduce(&mut self) -> Result<Item, StateError> {
        let args = self.pop("arguments")?;
        match (self.pop("a class")?, args) {
            (Item::Global(Global::DateTime), Item::TimeArgs(time)) => Ok(Item::Time(time)),
            (Item::Global(Global::TimeDelta), Item::DeltaArgs(micros)) => Ok(Item::Delta(micros)),
            (Item::Global(Global::TimeZone), Item::ZoneArgs(0)) => Ok(Item::Utc),
            // It could be converted exactly, but no torch writes one: whoever did is no peer of ours.
            (Item::Global(Global::TimeZone), Item::ZoneArgs(offset_micros)) => {
                Err(StateError::NotUtc { offset_micros, at: self.input.at })
            }
            (Item::Global(Global::DateTime | Global::TimeDelta | Global::TimeZone), found) => {
                Err(self.unexpected(found, "the arguments of a time"))
            }
            (found, _) => Err(self.unexpected(found, "datetime, timezone or timedelta")),
        }
    }

    /// Gives an object its attributes.
    fn build(&mut self) -> Result<(), StateError> {
        let at = self.input.at;
        let dict = match self.pop("a dict")? {
            Item::Dict(dict) => dict,
            found => return Err(self.unexpected(found, "a dict")),
        };
        match self.top("a state or a node")? {
            Item::Node(index) if self.tables.node(index).is_none() => {
                let attributes = self.tables.use_up_dict(dict, at)?;
                let node = build::node(&self.input, self.limits, &attributes)?;
                self.tables.finish_node(index, node);
                self.tables.recycle(attributes);
                Ok(())
            }
            Item::State if matches!(self.state, Progress::New) => {
                let attributes = self.tables.use_up_dict(dict, at)?;
                let (state, is_old) = build::state(&self.input, &self.tables, self.limits, &attributes)?;
                self.is_old |= is_old;
                self.state = Progress::Built(Box::new(state));
                Ok(())
            }
            found @ (Item::Node(_) | Item::State) => Err(StateError::BuiltTwice { object: found.kind(), at }),
            found => Err(self.unexpected(found, "a state or a node")),
        }
    }

    fn stop(mut self) -> Result<State, StateError> {
        let at = self.input.at;
        let found = self.pop("a state")?;
        if !matches!(found, Item::State) {
            return Err(StateError::NotAState { found: found.kind(), at });
        }
        if !self.stack.is_empty() {
            return Err(StateError::LeftOver { count: self.stack.len(), at });
        }
        if self.input.left() > 0 {
            return Err(StateError::TrailingBytes { len: self.input.left(), at });
        }
        match self.state {
            // Checked last: a state that is refused for its age alone is complete, and unpickling it does no harm.
            Progress::Built(_) if self.is_old => Err(StateError::OldAgent),
            Progress::Built(state) => Ok(*state),
            _ => Err(StateError::MissingField { object: "state", field: "round", at }),
        }
    }
}
