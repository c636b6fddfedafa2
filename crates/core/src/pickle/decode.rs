//! The stack machine: bytes in, a [`Document`] out.
//!
//! Bytes come from a peer and are bounded in every direction: the input by [`MAX_LENGTH`]; stack,
//! memo, marks, compounds and what is in those by [`MOST_ITEMS`] each. Nothing recurses, so depth
//! needs no bound here; taking a [`Value`] out does ([`MAX_DEPTH`]), and is paid from a [`Budget`],
//! because a few bytes can make a pickle that unfolds into more than any memory.
//!
//! Compounds live in a list and are named by their number, since an instance is remembered before
//! it has its attributes.

use super::error::{PickleError, Problem};
use super::opcode;
use super::time::Time;
use super::value::{Class, Value};

/// Longest pickle in bytes: a state of some 160,000 nodes.
pub const MAX_LENGTH: usize = 16 << 20;

/// Most entries of each of the machine's tables.
pub const MOST_ITEMS: usize = 1 << 20;

/// How deep a [`Value`] may nest.
pub const MAX_DEPTH: usize = 32;

/// Days that Python's durations may have, in either direction.
const MOST_DAYS: i128 = 999_999_999;

const DAY: i128 = 86_400_000_000;

/// Something in a document.
#[derive(Debug, Clone, Copy)]
pub enum Item<'a> {
    /// None.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float, by its bits.
    Float(u64),
    /// A text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A duration in microseconds.
    Span(i128),
    /// An offset from UTC, in microseconds to the east.
    Zone(i64),
    /// A date with a time of day.
    Time(Time),
    /// A class itself.
    Class(Class),
    /// The empty tuple.
    Empty,
    /// Something that contains others.
    Compound(Compound),
}

impl Item<'_> {
    /// What it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "bytes",
            Self::Span(_) => "a duration",
            Self::Zone(_) => "a time zone",
            Self::Time(_) => "a time",
            Self::Class(_) => "a class",
            Self::Empty => "a tuple",
            Self::Compound(compound) => compound.kind.name(),
        }
    }
}

/// Names something in a document that contains others.
#[derive(Debug, Clone, Copy)]
pub struct Compound {
    kind: Kind,
    number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tuple,
    List,
    Dict,
    Set,
    Object(Class),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tuple => "a tuple",
            Self::List => "a list",
            Self::Dict => "a dict",
            Self::Set => "a set",
            Self::Object(Class::State) => "a rendezvous state",
            Self::Object(_) => "a node",
        }
    }
}

/// What is in a compound.
#[derive(Debug)]
enum Content<'a> {
    Items(Vec<Item<'a>>),
    Pairs(Vec<(Item<'a>, Item<'a>)>),
    /// The dict with the attributes of an instance, once it has them.
    Attributes(Option<u32>),
}

/// A pickle that was read. What it means has not been looked at.
#[derive(Debug)]
pub struct Document<'a> {
    root: Item<'a>,
    contents: Vec<Content<'a>>,
}

impl<'a> Document<'a> {
    /// Runs the pickle. What follows its end is passed over, as Python does.
    pub fn read(pickle: &'a [u8]) -> Result<Self, PickleError> {
        let mut machine = Machine::new(pickle);
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

    /// The whole.
    pub fn root(&self) -> Item<'a> {
        self.root
    }

    /// The attributes of an instance of `class`; nothing if it is something else.
    pub fn attributes(&self, item: Item<'a>, class: Class) -> Option<&[(Item<'a>, Item<'a>)]> {
        match item {
            Item::Compound(compound) if compound.kind == Kind::Object(class) => {
                Some(self.pairs_of(compound))
            }
            _ => None,
        }
    }

    /// What is in a dict; nothing if it is something else. A key may come twice: the last counts.
    pub fn dict(&self, item: Item<'a>) -> Option<&[(Item<'a>, Item<'a>)]> {
        match item {
            Item::Compound(compound) if compound.kind == Kind::Dict => {
                Some(self.pairs_of(compound))
            }
            _ => None,
        }
    }

    /// What is in a set; nothing if it is something else. An item may come twice.
    pub fn set(&self, item: Item<'a>) -> Option<&[Item<'a>]> {
        match item {
            Item::Compound(compound) if compound.kind == Kind::Set => Some(self.items_of(compound)),
            _ => None,
        }
    }

    /// A copy that outlives the document.
    pub fn value(&self, item: Item<'a>, budget: &mut Budget) -> Result<Value, Problem> {
        self.copy(item, budget, 0)
    }

    fn copy(&self, item: Item<'a>, budget: &mut Budget, depth: usize) -> Result<Value, Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::TooMuch {
                what: "levels",
                most: MAX_DEPTH,
            });
        }
        budget.spend(size_of::<Value>())?;
        Ok(match item {
            Item::None => Value::None,
            Item::Bool(truth) => Value::Bool(truth),
            Item::Int(number) => Value::Int(number),
            Item::Float(bits) => Value::Float(bits),
            Item::Text(text) => {
                budget.spend(text.len())?;
                Value::Text(text.to_owned())
            }
            Item::Bytes(bytes) => {
                budget.spend(bytes.len())?;
                Value::Bytes(bytes.to_vec())
            }
            Item::Span(micros) => Value::Span(micros),
            Item::Zone(offset) => Value::Zone(offset),
            Item::Time(time) => Value::Time(time),
            Item::Class(class) => Value::Class(class),
            Item::Empty => Value::Tuple(Vec::new()),
            Item::Compound(compound) => match compound.kind {
                Kind::Tuple => Value::Tuple(self.copy_items(compound, budget, depth)?),
                Kind::List => Value::List(self.copy_items(compound, budget, depth)?),
                Kind::Set => Value::Set(self.copy_items(compound, budget, depth)?),
                Kind::Dict => Value::Dict(self.copy_pairs(compound, budget, depth)?),
                Kind::Object(class) => {
                    Value::Object(class, self.copy_pairs(compound, budget, depth)?)
                }
            },
        })
    }

    fn copy_items(
        &self,
        compound: Compound,
        budget: &mut Budget,
        depth: usize,
    ) -> Result<Vec<Value>, Problem> {
        self.items_of(compound)
            .iter()
            .map(|item| self.copy(*item, budget, depth + 1))
            .collect()
    }

    fn copy_pairs(
        &self,
        compound: Compound,
        budget: &mut Budget,
        depth: usize,
    ) -> Result<Vec<(Value, Value)>, Problem> {
        self.pairs_of(compound)
            .iter()
            .map(|(key, item)| {
                let key = self.copy(*key, budget, depth + 1)?;
                Ok((key, self.copy(*item, budget, depth + 1)?))
            })
            .collect()
    }

    fn items_of(&self, compound: Compound) -> &[Item<'a>] {
        match &self.contents[compound.number as usize] {
            Content::Items(items) => items,
            Content::Pairs(_) | Content::Attributes(_) => &[],
        }
    }

    fn pairs_of(&self, compound: Compound) -> &[(Item<'a>, Item<'a>)] {
        let mut content = &self.contents[compound.number as usize];
        if let Content::Attributes(Some(dict)) = content {
            content = &self.contents[*dict as usize];
        }
        match content {
            Content::Pairs(pairs) => pairs,
            Content::Items(_) | Content::Attributes(_) => &[],
        }
    }
}

/// How many more bytes may be copied out of a document.
#[derive(Debug)]
pub struct Budget {
    left: usize,
    whole: usize,
}

impl Budget {
    /// What any honest pickle of that length needs, many times over.
    pub fn for_length(length: usize) -> Self {
        let whole = (length * 16).saturating_add(1 << 20);
        Self { left: whole, whole }
    }

    /// Takes `bytes` off.
    pub fn spend(&mut self, bytes: usize) -> Result<(), Problem> {
        let too_much = Problem::TooMuch {
            what: "bytes in it when unfolded",
            most: self.whole,
        };
        self.left = self.left.checked_sub(bytes).ok_or(too_much)?;
        Ok(())
    }
}

struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    stack: Vec<Item<'a>>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: Vec<Item<'a>>,
    contents: Vec<Content<'a>>,
    /// How many items and pairs are in all the contents.
    contained: usize,
}

impl<'a> Machine<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            contents: Vec::new(),
            contained: 0,
        }
    }

    /// Carries out one instruction; gives the result with the last.
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
                let left = (self.input.len() - self.at) as u64;
                return if length <= left {
                    Ok(None)
                } else {
                    Err(Problem::CutShort)
                };
            }
            opcode::MARK => {
                bounded(self.marks.len(), MOST_ITEMS, "marks")?;
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            opcode::MEMOIZE => {
                bounded(self.memo.len(), MOST_ITEMS, "remembered items")?;
                let top = self.top()?;
                self.memo.push(top);
                return Ok(None);
            }
            opcode::SETITEM | opcode::SETITEMS => {
                self.set_items(instruction == opcode::SETITEM)?;
                return Ok(None);
            }
            opcode::APPEND => {
                let item = self.pop()?;
                self.contain(1)?;
                self.items_at_top(Kind::List)?.push(item);
                return Ok(None);
            }
            opcode::APPENDS | opcode::ADDITEMS => {
                let items = self.pop_to_mark()?;
                let kind = if instruction == opcode::APPENDS {
                    Kind::List
                } else {
                    Kind::Set
                };
                self.contain(items.len())?;
                self.items_at_top(kind)?.extend(items);
                return Ok(None);
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
                self.contain(items.len())?;
                self.compound(Kind::Tuple, Content::Items(items))?
            }
            opcode::EMPTY_LIST => self.compound(Kind::List, Content::Items(Vec::new()))?,
            opcode::EMPTY_DICT => self.compound(Kind::Dict, Content::Pairs(Vec::new()))?,
            opcode::EMPTY_SET => self.compound(Kind::Set, Content::Items(Vec::new()))?,
            opcode::STACK_GLOBAL => self.class()?,
            opcode::NEWOBJ => self.new_object()?,
            opcode::REDUCE => self.call()?,
            other => return Err(self.refuse(other)),
        };
        bounded(self.stack.len(), MOST_ITEMS, "items at once")?;
        self.stack.push(item);
        Ok(None)
    }

    // The input.

    fn take(&mut self, length: usize) -> Result<&'a [u8], Problem> {
        let rest = &self.input[self.at..];
        let taken = rest.get(..length).ok_or(Problem::CutShort)?;
        self.at += length;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("as many bytes as were asked for"))
    }

    fn text(&mut self, length: usize) -> Result<Item<'a>, Problem> {
        let bytes = self.take(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Item::Text(text)),
            Err(_) => Err(Problem::NotText),
        }
    }

    fn long(&mut self) -> Result<Item<'a>, Problem> {
        let [length] = self.take_array()?;
        let bytes = self.take(usize::from(length))?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; size_of::<i128>()];
        let place = whole.get_mut(..bytes.len()).ok_or(Problem::TooMuch {
            what: "bytes in an integer",
            most: size_of::<i128>(),
        })?;
        place.copy_from_slice(bytes);
        Ok(Item::Int(i128::from_le_bytes(whole)))
    }

    // The stack. What lies below the last mark is out of reach.

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Item<'a>, Problem> {
        if self.stack.len() <= self.floor() {
            return Err(Problem::Missing);
        }
        self.stack.pop().ok_or(Problem::Missing)
    }

    fn top(&self) -> Result<Item<'a>, Problem> {
        if self.stack.len() <= self.floor() {
            return Err(Problem::Missing);
        }
        self.stack.last().copied().ok_or(Problem::Missing)
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

    fn compound(&mut self, kind: Kind, content: Content<'a>) -> Result<Item<'a>, Problem> {
        bounded(self.contents.len(), MOST_ITEMS, "compounds")?;
        let number = u32::try_from(self.contents.len()).expect("bounded by less");
        self.contents.push(content);
        Ok(Item::Compound(Compound { kind, number }))
    }

    /// Makes sure that there is room for so many more.
    fn contain(&mut self, more: usize) -> Result<(), Problem> {
        self.contained += more;
        bounded(self.contained, MOST_ITEMS + 1, "items in compounds")
    }

    fn items_at_top(&mut self, kind: Kind) -> Result<&mut Vec<Item<'a>>, Problem> {
        let found = self.top()?;
        if let Item::Compound(compound) = found
            && compound.kind == kind
            && let Content::Items(items) = &mut self.contents[compound.number as usize]
        {
            return Ok(items);
        }
        Err(Problem::Expected {
            wanted: kind.name(),
            found: found.kind(),
        })
    }

    fn set_items(&mut self, single: bool) -> Result<(), Problem> {
        let mut pairs = Vec::new();
        if single {
            let item = self.pop()?;
            pairs.push((self.pop()?, item));
        } else {
            let items = self.pop_to_mark()?;
            let (whole, rest) = items.as_chunks::<2>();
            if !rest.is_empty() {
                return Err(Problem::Missing);
            }
            pairs.extend(whole.iter().map(|[key, item]| (*key, *item)));
        }
        self.contain(pairs.len())?;
        let found = self.top()?;
        if let Item::Compound(compound) = found
            && compound.kind == Kind::Dict
            && let Content::Pairs(known) = &mut self.contents[compound.number as usize]
        {
            if known.is_empty() {
                *known = pairs;
            } else {
                known.extend(pairs);
            }
            return Ok(());
        }
        Err(Problem::Expected {
            wanted: Kind::Dict.name(),
            found: found.kind(),
        })
    }

    fn tuple(&mut self, length: usize) -> Result<Item<'a>, Problem> {
        let start = self.stack.len().checked_sub(length);
        let start = start.filter(|start| *start >= self.floor());
        let items = self.stack.split_off(start.ok_or(Problem::Missing)?);
        self.contain(length)?;
        self.compound(Kind::Tuple, Content::Items(items))
    }

    // Classes.

    fn class(&mut self) -> Result<Item<'a>, Problem> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (Item::Text(name), Item::Text(module)) = (name, module) else {
            return Err(Problem::Expected {
                wanted: "the name of a class",
                found: name.kind(),
            });
        };
        let class = Class::named(module, name).ok_or_else(|| forbidden(module, name))?;
        Ok(Item::Class(class))
    }

    fn new_object(&mut self) -> Result<Item<'a>, Problem> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        match (class, arguments) {
            (Item::Class(class), Item::Empty) if class.has_attributes() => {
                self.compound(Kind::Object(class), Content::Attributes(None))
            }
            (Item::Class(class), arguments) if class.has_attributes() => Err(Problem::Expected {
                wanted: "the empty tuple",
                found: arguments.kind(),
            }),
            (found, _) => Err(Problem::Expected {
                wanted: "the class of a state or node",
                found: found.kind(),
            }),
        }
    }

    fn build(&mut self) -> Result<(), Problem> {
        let attributes = self.pop()?;
        let Item::Compound(Compound {
            kind: Kind::Dict,
            number,
        }) = attributes
        else {
            return Err(Problem::Expected {
                wanted: Kind::Dict.name(),
                found: attributes.kind(),
            });
        };
        let found = self.top()?;
        if let Item::Compound(compound) = found
            && let Content::Attributes(given @ None) = &mut self.contents[compound.number as usize]
        {
            *given = Some(number);
            return Ok(());
        }
        Err(Problem::Expected {
            wanted: "an instance without attributes",
            found: found.kind(),
        })
    }

    /// Calls one of the classes of time, whose instances are made in this way.
    fn call(&mut self) -> Result<Item<'a>, Problem> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Item::Class(class) = callee else {
            return Err(Problem::Expected {
                wanted: "a class of times",
                found: callee.kind(),
            });
        };
        let items: &[Item<'_>] = match arguments {
            Item::Compound(Compound {
                kind: Kind::Tuple,
                number,
            }) => match &self.contents[number as usize] {
                Content::Items(items) => items,
                Content::Pairs(_) | Content::Attributes(_) => &[],
            },
            _ => &[],
        };
        let made = match (class, items) {
            (Class::Datetime, [Item::Bytes(bytes)]) => {
                Time::shown_by(bytes).map(|shown| Item::Time(Time { shown, zone: None }))
            }
            (Class::Datetime, [Item::Bytes(bytes), Item::Zone(offset)]) => Time::shown_by(bytes)
                .map(|shown| {
                    let zone = Some(*offset);
                    Item::Time(Time { shown, zone })
                }),
            (Class::Timezone, [Item::Span(offset)]) => {
                let within_a_day = offset.abs() < DAY;
                let offset = i64::try_from(*offset).ok().filter(|_| within_a_day);
                offset.map(Item::Zone)
            }
            (Class::Timedelta, [Item::Int(days), Item::Int(seconds), Item::Int(micros)]) => {
                span(*days, *seconds, *micros).map(Item::Span)
            }
            _ => None,
        };
        made.ok_or(Problem::Expected {
            wanted: "what a time, time zone or duration is made of",
            found: "something else",
        })
    }

    /// Why an instruction is refused. The older way to name a class is told apart, so that what it
    /// names can be said.
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

fn forbidden(module: &str, name: &str) -> Problem {
    const SHOWN: usize = 100;
    Problem::Forbidden {
        module: module.chars().take(SHOWN).collect(),
        name: name.chars().take(SHOWN).collect(),
    }
}

fn span(days: i128, seconds: i128, micros: i128) -> Option<i128> {
    let seconds = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    let whole = days.checked_mul(DAY)?.checked_add(seconds)?;
    (whole.div_euclid(DAY).abs() <= MOST_DAYS).then_some(whole)
}

fn bounded(count: usize, most: usize, what: &'static str) -> Result<(), Problem> {
    if count < most {
        Ok(())
    } else {
        Err(Problem::TooMuch { what, most })
    }
}
