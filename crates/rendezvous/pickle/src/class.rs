//! Classes that a pickle can name.

/// Module of PyTorch's rendezvous classes.
pub const RENDEZVOUS_MODULE: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";

/// Module of Python's times.
pub const TIME_MODULE: &str = "datetime";

/// Class that a pickle may name; a pickle cannot name anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// State of a rendezvous.
    State,
    /// Node in the state of a rendezvous.
    Node,
    /// Date with a time of day.
    Datetime,
    /// Offset from UTC.
    Timezone,
    /// Duration.
    Timedelta,
}

impl Class {
    /// All five classes.
    pub const ALL: [Self; 5] = [
        Self::State,
        Self::Node,
        Self::Datetime,
        Self::Timezone,
        Self::Timedelta,
    ];

    /// Returns the Python module of the class.
    pub const fn module(self) -> &'static str {
        match self {
            Self::State | Self::Node => RENDEZVOUS_MODULE,
            Self::Datetime | Self::Timezone | Self::Timedelta => TIME_MODULE,
        }
    }

    /// Returns the name of the class in its module.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "_RendezvousState",
            Self::Node => "_NodeDesc",
            Self::Datetime => "datetime",
            Self::Timezone => "timezone",
            Self::Timedelta => "timedelta",
        }
    }

    /// Returns the class with this name, if it is one of the five.
    pub fn named(module: &str, name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|class| class.module() == module && class.name() == name)
    }

    /// `true` if instances are a set of attributes, rather than one value.
    pub const fn has_attributes(self) -> bool {
        matches!(self, Self::State | Self::Node)
    }
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
