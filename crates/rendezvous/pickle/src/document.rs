//! Document: a decoded pickle, and access to its items.
//!
//! Compounds are in a list and have numbers, because an instance is remembered before it has its
//! attributes. A few bytes can therefore make a document that unfolds into more than any memory, or
//! that contains itself. The reader of a document charges what it copies to a [`Budget`].

use super::Problem;
use super::class::Class;
use super::time::Time;

/// Item in a document.
#[derive(Debug, Clone, Copy)]
pub enum Item<'a> {
    /// Python's `None`.
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
    /// A compound, which contains other items.
    Compound(Compound),
}

impl Item<'_> {
    /// Kind of the item, for messages.
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

    /// Returns the compound; `None` if the item is of another kind.
    fn compound(self, kind: Kind) -> Option<Compound> {
        match self {
            Self::Compound(compound) if compound.kind == kind => Some(compound),
            _ => None,
        }
    }
}

/// Reference to an item that contains other items.
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

#[derive(Debug)]
pub(super) struct Content<'a> {
    /// Items; for a dict, keys and values in turn.
    pub(super) items: Vec<Item<'a>>,
    /// Dict with the attributes of an instance; `None` until it has been built.
    pub(super) attributes: Option<u32>,
}

/// Keys and values of a dict.
pub type Pairs<'d, 'a> = &'d [[Item<'a>; 2]];

/// Decoded pickle, whose meaning has not been checked.
#[derive(Debug)]
pub struct Document<'a> {
    pub(super) root: Item<'a>,
    pub(super) contents: Vec<Content<'a>>,
}

impl<'a> Document<'a> {
    /// Returns the item that contains the whole pickle.
    pub fn root(&self) -> Item<'a> {
        self.root
    }

    /// Returns the attributes of an instance; `None` if `item` is not of `class`.
    pub fn attributes(&self, item: Item<'a>, class: Class) -> Option<Pairs<'_, 'a>> {
        item.compound(Kind::Object(class))
            .map(|compound| self.pairs_of(compound))
    }

    /// Returns the contents of a dict; `None` if the item is not a dict.
    ///
    /// A key may occur twice: the last occurrence counts.
    pub fn dict(&self, item: Item<'a>) -> Option<Pairs<'_, 'a>> {
        item.compound(Kind::Dict)
            .map(|compound| self.pairs_of(compound))
    }

    /// Returns the items of a set; `None` if `item` is not a set.
    ///
    /// An item may occur twice.
    pub fn set(&self, item: Item<'a>) -> Option<&[Item<'a>]> {
        item.compound(Kind::Set)
            .map(|compound| self.items_of(compound))
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

/// Number of bytes that may still be copied out of a document.
#[derive(Debug)]
pub struct Budget {
    left: usize,
    whole: usize,
}

impl Budget {
    /// Returns many times the budget that an honest pickle of this length needs.
    pub fn for_length(length: usize) -> Self {
        let whole = (length * 16).saturating_add(1 << 20);
        Self { left: whole, whole }
    }

    /// Subtracts `bytes` from the budget.
    pub fn spend(&mut self, bytes: usize) -> Result<(), Problem> {
        let too_much = Problem::TooMuch {
            what: "bytes when expanded",
            most: self.whole,
        };
        self.left = self.left.checked_sub(bytes).ok_or(too_much)?;
        Ok(())
    }
}
