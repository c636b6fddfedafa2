//! What can be in a pickle.

use super::time::Time;

/// Module of the rendezvous's own classes.
pub const RENDEZVOUS_MODULE: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";

/// Module of Python's times.
pub const TIME_MODULE: &str = "datetime";

/// The classes that a pickle may name. There is no way to name anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The state of a rendezvous.
    State,
    /// A node in it.
    Node,
    /// A date with a time of day.
    Datetime,
    /// An offset from UTC.
    Timezone,
    /// A duration.
    Timedelta,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::State,
        Self::Node,
        Self::Datetime,
        Self::Timezone,
        Self::Timedelta,
    ];

    /// Its module in Python.
    pub const fn module(self) -> &'static str {
        match self {
            Self::State | Self::Node => RENDEZVOUS_MODULE,
            Self::Datetime | Self::Timezone | Self::Timedelta => TIME_MODULE,
        }
    }

    /// Its name there.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "_RendezvousState",
            Self::Node => "_NodeDesc",
            Self::Datetime => "datetime",
            Self::Timezone => "timezone",
            Self::Timedelta => "timedelta",
        }
    }

    /// The class of that name, if it is one of the five.
    pub fn named(module: &str, name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|class| class.module() == module && class.name() == name)
    }

    /// Whether its instances are a set of attributes, rather than one value.
    pub const fn has_attributes(self) -> bool {
        matches!(self, Self::State | Self::Node)
    }
}

/// Something out of a pickle, to be kept as it is. Sharing is not kept: what was in the pickle once
/// and used twice is two equal values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// None.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float, by its bits, so that every one equals itself.
    Float(u64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A tuple.
    Tuple(Vec<Self>),
    /// A list.
    List(Vec<Self>),
    /// Keys and what they stand for, in the order they came.
    Dict(Vec<(Self, Self)>),
    /// A set, in the order its items came.
    Set(Vec<Self>),
    /// A duration, in microseconds.
    Span(i128),
    /// An offset from UTC, in microseconds to the east.
    Zone(i64),
    /// A date with a time of day.
    Time(Time),
    /// A class itself.
    Class(Class),
    /// An instance of a class that has attributes.
    Object(Class, Vec<(Self, Self)>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_classes_can_be_named_and_nothing_else() {
        let named: Vec<String> = Class::ALL
            .iter()
            .map(|class| format!("{}.{}", class.module(), class.name()))
            .collect();
        assert_eq!(
            named,
            [
                "torch.distributed.elastic.rendezvous.dynamic_rendezvous._RendezvousState",
                "torch.distributed.elastic.rendezvous.dynamic_rendezvous._NodeDesc",
                "datetime.datetime",
                "datetime.timezone",
                "datetime.timedelta",
            ]
        );
        for class in Class::ALL {
            assert_eq!(Class::named(class.module(), class.name()), Some(class));
        }
        for (module, name) in [
            ("posix", "system"),
            ("builtins", "eval"),
            ("builtins", "set"),
            ("datetime", "date"),
            ("datetime", "datetime.datetime"),
            (RENDEZVOUS_MODULE, "datetime"),
            (RENDEZVOUS_MODULE, "_NodeDesc.__init__"),
            ("datetime", "_NodeDesc"),
            ("", ""),
        ] {
            assert_eq!(Class::named(module, name), None, "{module}.{name}");
        }
    }
}
