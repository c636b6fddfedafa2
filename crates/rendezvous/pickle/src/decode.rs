//! Stack machine that decodes bytes into a [`Document`].
//!
//! The bytes come from a peer, so every size is bounded. [`MAX_LENGTH`] bounds the input.
//! [`MOST_ITEMS`] bounds each of the stack, the memo, the marks, the compounds and their contents.
//! Nothing recurses, so depth needs no bound here.

use super::class::Class;
use super::document::{Compound, Content, Document, Item, Kind};
use super::opcode;
use super::time::Time;
use super::{PickleError, Problem};

/// Maximum length of a pickle in bytes: a state of some 160,000 nodes.
pub const MAX_LENGTH: usize = 16 << 20;

/// Maximum number of entries in each of the machine's tables.
pub const MOST_ITEMS: usize = 1 << 20;

impl<'a> Document<'a> {
    /// Runs the pickle; ignores the bytes after its end, as Python does.
    pub fn read(pickle: &'a [u8]) -> Result<Self, PickleError> {
        let mut machine = Machine {
            input: pickle,
            ..Machine::default()
        };
        loop {
            let start = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    return Ok(Self {
                        root,
                        contents: machine.contents,
                    });
                }
                Err(problem) => return Err(PickleError { at: start, problem }),
            }
        }
    }
}

#[derive(Default)]
struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    stack: Vec<Item<'a>>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: Vec<Item<'a>>,
    contents: Vec<Content<'a>>,
    /// Number of items in all compounds; a pair of a dict counts as two.
    contained: usize,
}

impl<'a> Machine<'a> {
    /// Executes one instruction; the last one returns the result.
    fn step(&mut self) -> Result<Option<Item<'a>>, Problem> {
        bounded(self.input.len(), MAX_LENGTH + 1, "bytes")?;
        let [instruction] = self.take_array()?;
        let item = match instruction {
            opcode::STOP => return self.pop().map(Some),
            opcode::PROTO => {
                return match self.take_array()? {
                    [..=5] => Ok(None),
                    [version] => Err(Problem::Protocol(version)),
                };
            }
            opcode::FRAME => {
                let length = u64::from_le_bytes(self.take_array()?);
                if length > (self.input.len() - self.at) as u64 {
                    return Err(Problem::CutShort);
                }
                return Ok(None);
            }
            opcode::MARK => {
                bounded(self.marks.len(), MOST_ITEMS, "marks")?;
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            opcode::MEMOIZE => {
                bounded(self.memo.len(), MOST_ITEMS, "memo items")?;
                let top = self.top()?;
                self.memo.push(top);
                return Ok(None);
            }
            opcode::SETITEM => {
                let pair = self.pop_several(2)?;
                return self.add_to_top(Kind::Dict, pair);
            }
            opcode::APPEND => {
                let item = self.pop()?;
                return self.add_to_top(Kind::List, vec![item]);
            }
            opcode::SETITEMS | opcode::APPENDS | opcode::ADDITEMS => {
                let items = self.pop_to_mark()?;
                let kind = match instruction {
                    opcode::SETITEMS => Kind::Dict,
                    opcode::APPENDS => Kind::List,
                    _ => Kind::Set,
                };
                return self.add_to_top(kind, items);
            }
            opcode::BUILD => {
                self.build()?;
                return Ok(None);
            }
            opcode::BINGET => {
                let [number] = self.take_array()?;
                self.recall(usize::from(number))?
            }
            opcode::LONG_BINGET => {
                let number = u32::from_le_bytes(self.take_array()?);
                self.recall(number as usize)?
            }
            opcode::NONE => Item::None,
            opcode::NEWTRUE => Item::Bool(true),
            opcode::NEWFALSE => Item::Bool(false),
            opcode::BININT1 => Item::Int(self.take_array::<1>()?[0].into()),
            opcode::BININT2 => Item::Int(u16::from_le_bytes(self.take_array()?).into()),
            opcode::BININT => Item::Int(i32::from_le_bytes(self.take_array()?).into()),
            opcode::LONG1 => self.long()?,
            opcode::BINFLOAT => Item::Float(u64::from_be_bytes(self.take_array()?)),
            opcode::SHORT_BINUNICODE => {
                let [length] = self.take_array()?;
                self.text(usize::from(length))?
            }
            opcode::BINUNICODE => {
                let length = u32::from_le_bytes(self.take_array()?);
                self.text(length as usize)?
            }
            opcode::SHORT_BINBYTES => {
                let [length] = self.take_array()?;
                Item::Bytes(self.take(usize::from(length))?)
            }
            opcode::BINBYTES => {
                let length = u32::from_le_bytes(self.take_array()?);
                Item::Bytes(self.take(length as usize)?)
            }
            opcode::EMPTY_TUPLE => Item::Empty,
            opcode::TUPLE1 => self.tuple(1)?,
            opcode::TUPLE2 => self.tuple(2)?,
            opcode::TUPLE3 => self.tuple(3)?,
            opcode::TUPLE => {
                let items = self.pop_to_mark()?;
                self.compound(Kind::Tuple, items)?
            }
            opcode::EMPTY_LIST => self.compound(Kind::List, Vec::new())?,
            opcode::EMPTY_DICT => self.compound(Kind::Dict, Vec::new())?,
            opcode::EMPTY_SET => self.compound(Kind::Set, Vec::new())?,
            opcode::STACK_GLOBAL => self.class()?,
            opcode::NEWOBJ => self.new_object()?,
            opcode::REDUCE => self.call()?,
            other => return Err(self.refuse(other)),
        };
        bounded(self.stack.len(), MOST_ITEMS, "items on the stack")?;
        self.stack.push(item);
        Ok(None)
    }

    // Input.

    fn take(&mut self, length: usize) -> Result<&'a [u8], Problem> {
        let rest = &self.input[self.at..];
        let taken = rest.get(..length).ok_or(Problem::CutShort)?;
        self.at += length;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("the requested number of bytes"))
    }

    fn text(&mut self, length: usize) -> Result<Item<'a>, Problem> {
        let text = std::str::from_utf8(self.take(length)?);
        text.map(Item::Text).map_err(|_| Problem::NotText)
    }

    fn long(&mut self) -> Result<Item<'a>, Problem> {
        let [length] = self.take_array()?;
        let bytes = self.take(usize::from(length))?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; size_of::<i128>()];
        let target = whole.get_mut(..bytes.len()).ok_or(Problem::TooMuch {
            what: "bytes in an integer",
            most: size_of::<i128>(),
        })?;
        target.copy_from_slice(bytes);
        Ok(Item::Int(i128::from_le_bytes(whole)))
    }

    // Stack. Items below the last mark are out of reach.

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Item<'a>, Problem> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top(&self) -> Result<Item<'a>, Problem> {
        let reachable = self.stack.get(self.floor()..);
        let top = reachable.and_then(|items| items.last());
        top.copied().ok_or(Problem::Missing)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Item<'a>>, Problem> {
        let mark = self.marks.pop().ok_or(Problem::Missing)?;
        Ok(self.stack.split_off(mark))
    }

    fn recall(&self, number: usize) -> Result<Item<'a>, Problem> {
        let item = self.memo.get(number).ok_or(Problem::Memo(number))?;
        Ok(*item)
    }

    // Compounds.

    fn compound(&mut self, kind: Kind, items: Vec<Item<'a>>) -> Result<Item<'a>, Problem> {
        self.contain(items.len())?;
        bounded(self.contents.len(), MOST_ITEMS, "compounds")?;
        let number = u32::try_from(self.contents.len()).expect("bounded by less");
        self.contents.push(Content {
            items,
            attributes: None,
        });
        Ok(Item::Compound(Compound { kind, number }))
    }

    /// Counts `more` items in compounds; returns an error if there is no room.
    fn contain(&mut self, more: usize) -> Result<(), Problem> {
        self.contained += more;
        bounded(self.contained, MOST_ITEMS + 1, "items in containers")
    }

    /// Adds items to the compound on the stack; to a dict, keys and values in turn.
    fn add_to_top(
        &mut self,
        kind: Kind,
        items: Vec<Item<'a>>,
    ) -> Result<Option<Item<'a>>, Problem> {
        if kind == Kind::Dict && !items.len().is_multiple_of(2) {
            return Err(Problem::Missing);
        }
        self.contain(items.len())?;
        let found = self.top()?;
        match found {
            Item::Compound(compound) if compound.kind == kind => {
                let known = &mut self.contents[compound.number as usize].items;
                if known.is_empty() {
                    *known = items;
                } else {
                    known.extend(items);
                }
                Ok(None)
            }
            _ => Err(expected(kind.name(), found)),
        }
    }

    fn pop_several(&mut self, count: usize) -> Result<Vec<Item<'a>>, Problem> {
        let start = self.stack.len().checked_sub(count);
        let start = start.filter(|start| *start >= self.floor());
        Ok(self.stack.split_off(start.ok_or(Problem::Missing)?))
    }

    fn tuple(&mut self, length: usize) -> Result<Item<'a>, Problem> {
        let items = self.pop_several(length)?;
        self.compound(Kind::Tuple, items)
    }

    // Classes.

    fn class(&mut self) -> Result<Item<'a>, Problem> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (Item::Text(name), Item::Text(module)) = (name, module) else {
            return Err(expected("the name of a class", name));
        };
        let class = Class::named(module, name).ok_or_else(|| forbidden(module, name))?;
        Ok(Item::Class(class))
    }

    fn new_object(&mut self) -> Result<Item<'a>, Problem> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        match (class, arguments) {
            (Item::Class(class), Item::Empty) if class.has_attributes() => {
                self.compound(Kind::Object(class), Vec::new())
            }
            (Item::Class(class), arguments) if class.has_attributes() => {
                Err(expected("the empty tuple", arguments))
            }
            (found, _) => Err(expected("the class of a state or node", found)),
        }
    }

    fn build(&mut self) -> Result<(), Problem> {
        let attributes = self.pop()?;
        let Item::Compound(Compound {
            kind: Kind::Dict,
            number,
        }) = attributes
        else {
            return Err(expected(Kind::Dict.name(), attributes));
        };
        let found = self.top()?;
        if let Item::Compound(compound) = found
            && matches!(compound.kind, Kind::Object(_))
            && let given @ None = &mut self.contents[compound.number as usize].attributes
        {
            *given = Some(number);
            return Ok(());
        }
        Err(expected("an instance without attributes", found))
    }

    /// Calls one of the classes of time, which create their instances by calls.
    fn call(&mut self) -> Result<Item<'a>, Problem> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Item::Class(class) = callee else {
            return Err(expected("a class of times", callee));
        };
        let items: &[Item<'_>] = match arguments {
            Item::Compound(Compound {
                kind: Kind::Tuple,
                number,
            }) => &self.contents[number as usize].items,
            _ => &[],
        };
        call(class, items).ok_or(Problem::Expected {
            wanted: "the parts of a time, time zone or duration",
            found: "something else",
        })
    }

    /// Returns the reason why an instruction is refused.
    ///
    /// A forbidden class that is named in the older way gets a separate error, which shows its
    /// name.
    fn refuse(&self, instruction: u8) -> Problem {
        const GLOBAL: u8 = b'c';
        let mut lines = self.input[self.at..].splitn(3, |byte| *byte == b'\n');
        if instruction == GLOBAL
            && let (Some(module), Some(name), Some(_)) = (lines.next(), lines.next(), lines.next())
            && let (Ok(module), Ok(name)) = (std::str::from_utf8(module), std::str::from_utf8(name))
            && Class::named(module, name).is_none()
        {
            return forbidden(module, name);
        }
        Problem::Opcode(instruction)
    }
}

fn expected(wanted: &'static str, item: Item<'_>) -> Problem {
    let found = item.kind();
    Problem::Expected { wanted, found }
}

fn forbidden(module: &str, name: &str) -> Problem {
    const SHOWN: usize = 100;
    Problem::Forbidden {
        module: module.chars().take(SHOWN).collect(),
        name: name.chars().take(SHOWN).collect(),
    }
}

fn bounded(count: usize, most: usize, what: &'static str) -> Result<(), Problem> {
    if count < most {
        Ok(())
    } else {
        Err(Problem::TooMuch { what, most })
    }
}

/// Maximum number of days in Python's durations, in either direction.
const MOST_DAYS: i128 = 999_999_999;

const DAY: i128 = 86_400_000_000;

/// Executes one of the calls that a pickle may make.
///
/// These are the calls: `datetime(ten bytes)`, `datetime(ten bytes, zone)`, `timezone(duration)`,
/// `timedelta(days, s, µs)`. They run no other code. Returns `None` for any other call, or if a
/// value is out of range.
fn call<'a>(class: Class, arguments: &[Item<'a>]) -> Option<Item<'a>> {
    match (class, arguments) {
        (Class::Datetime, [Item::Bytes(bytes), zone @ ..]) => {
            let zone = match zone {
                [] => None,
                [Item::Zone(offset)] => Some(*offset),
                _ => return None,
            };
            Time::shown_by(bytes).map(|shown| Item::Time(Time { shown, zone }))
        }
        (Class::Timezone, [Item::Span(offset)]) => {
            let within_a_day = offset.abs() < DAY;
            let offset = i64::try_from(*offset).ok().filter(|_| within_a_day);
            offset.map(Item::Zone)
        }
        (Class::Timedelta, [Item::Int(days), Item::Int(seconds), Item::Int(micros)]) => {
            span(*days, *seconds, *micros).map(Item::Span)
        }
        _ => None,
    }
}

fn span(days: i128, seconds: i128, micros: i128) -> Option<i128> {
    let seconds = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    let whole = days.checked_mul(DAY)?.checked_add(seconds)?;
    (whole.div_euclid(DAY).abs() <= MOST_DAYS).then_some(whole)
}
