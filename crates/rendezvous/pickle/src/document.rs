//! A pickle that was read, and taking things out of it.
//!
//! Compounds live in a list and are named by their number, since an instance is remembered before
//! it has its attributes. So a few bytes can make a document that unfolds into more than any
//! memory, or that contains itself: what is copied out of one is paid from a [`Budget`], and nests
//! at most [`MAX_DEPTH`] deep.

use super::Problem;
use super::time::Time;
use super::value::{Class, Value};

/// How deep a [`Value`] may nest.
pub const MAX_DEPTH: usize = 32;

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

    /// The compound; `None` if the item is of another kind.
    fn compound(self, kind: Kind) -> Option<Compound> {
        match self {
            Self::Compound(compound) if compound.kind == kind => Some(compound),
            _ => None,
        }
    }
}

/// Names something in a document that contains others.
#[derive(Debug, Clone, Copy)]
pub struct Compound {
    pub(super) kind: Kind,
    pub(super) number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tuple,
    List,
    Dict,
    Set,
    Object(Class),
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
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
pub(super) struct Content<'a> {
    /// Of a dict, the keys and values in turn.
    pub(super) items: Vec<Item<'a>>,
    /// The dict with the attributes of an instance, once it has them.
    pub(super) attributes: Option<u32>,
}

/// Keys with what they stand for.
pub type Pairs<'d, 'a> = &'d [[Item<'a>; 2]];

/// A pickle that was read. What it means has not been looked at.
#[derive(Debug)]
pub struct Document<'a> {
    pub(super) root: Item<'a>,
    pub(super) contents: Vec<Content<'a>>,
}

impl<'a> Document<'a> {
    /// The whole.
    pub fn root(&self) -> Item<'a> {
        self.root
    }

    /// The attributes of an instance of `class`; nothing if it is something else.
    pub fn attributes(&self, item: Item<'a>, class: Class) -> Option<Pairs<'_, 'a>> {
        item.compound(Kind::Object(class))
            .map(|compound| self.pairs_of(compound))
    }

    /// What is in a dict; nothing if it is something else. A key may come twice: the last counts.
    pub fn dict(&self, item: Item<'a>) -> Option<Pairs<'_, 'a>> {
        item.compound(Kind::Dict)
            .map(|compound| self.pairs_of(compound))
    }

    /// What is in a set; nothing if it is something else. An item may come twice.
    pub fn set(&self, item: Item<'a>) -> Option<&[Item<'a>]> {
        item.compound(Kind::Set)
            .map(|compound| self.items_of(compound))
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
            .map(|[key, item]| {
                let key = self.copy(*key, budget, depth + 1)?;
                Ok((key, self.copy(*item, budget, depth + 1)?))
            })
            .collect()
    }

    fn items_of(&self, compound: Compound) -> &[Item<'a>] {
        &self.contents[compound.number as usize].items
    }

    fn pairs_of(&self, compound: Compound) -> Pairs<'_, 'a> {
        let content = &self.contents[compound.number as usize];
        let dict = content.attributes.unwrap_or(compound.number);
        self.contents[dict as usize].items.as_chunks().0
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
