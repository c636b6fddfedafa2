//! Event sinks by name, for `--event-log-handler`.

use std::collections::BTreeMap;
use std::fmt;

use super::sink::{EventSink, RunFacts};
use super::torchelastic_events::ConsoleEvents;
use crate::AgentEvent;

/// Function that creates a sink for one run.
type Factory = Box<dyn Fn(&RunFacts) -> Box<dyn EventSink + Send> + Send + Sync>;

/// Sinks that users select by name (`--event-log-handler`).
///
/// | name | output |
/// |---|---|
/// | `null` | nothing |
/// | `console` | the run's milestones as JSON on stderr, in torchelastic's form |
/// | `dynamic_rendezvous` | nothing; register a sink that uses [`torchelastic_rendezvous`](super::torchelastic_rendezvous) to get the events of a dynamic rendezvous |
pub struct EventRegistry(BTreeMap<String, Factory>);

impl EventRegistry {
    /// Creates a registry with the three names of torchelastic.
    pub fn with_defaults() -> Self {
        let mut registry = Self(BTreeMap::new());
        registry.register("null", |_| Box::new(|_: &AgentEvent| {}));
        registry.register("console", |facts| {
            Box::new(ConsoleEvents::new(facts.clone()))
        });
        registry.register("dynamic_rendezvous", |_| Box::new(|_: &AgentEvent| {}));
        registry
    }

    /// Registers a sink under a name; it replaces an earlier sink of that name.
    pub fn register(
        &mut self,
        name: &str,
        factory: impl Fn(&RunFacts) -> Box<dyn EventSink + Send> + Send + Sync + 'static,
    ) {
        self.0.insert(name.to_owned(), Box::new(factory));
    }

    /// Returns the sink of that name for one run; `None` if there is no such name.
    pub fn create(&self, name: &str, facts: &RunFacts) -> Option<Box<dyn EventSink + Send>> {
        self.0.get(name).map(|factory| factory(facts))
    }

    /// Returns all names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl Default for EventRegistry {
    fn default() -> Self {
        Self::with_defaults()
    }
}

impl fmt::Debug for EventRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.names()).finish()
    }
}
