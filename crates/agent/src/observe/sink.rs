//! Who hears of events, and how a sink gets a name.

use std::collections::BTreeMap;
use std::fmt;

use super::{ConsoleEvents, RunFacts};
use crate::AgentEvent;

/// Someone who is told of every event of a run, in order.
///
/// Every closure over an event is one. Give several of them to a run as [`EventSinks`].
pub trait EventSink {
    /// Takes one event. Called on the agent's thread between two decisions: while it runs, nothing
    /// is supervised, so it must not block.
    fn record(&mut self, event: &AgentEvent);

    /// Called once, after the last event; may wait a moment until what was recorded is written.
    fn finish(&mut self) {}
}

impl<F: FnMut(&AgentEvent)> EventSink for F {
    fn record(&mut self, event: &AgentEvent) {
        self(event);
    }
}

/// Several sinks that hear of everything, in the order in which they were added.
#[derive(Default)]
pub struct EventSinks(Vec<Box<dyn EventSink>>);

impl EventSinks {
    /// Nobody listens yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one more.
    pub fn add(&mut self, sink: impl EventSink + 'static) -> &mut Self {
        self.add_boxed(Box::new(sink))
    }

    /// Adds one that has a name ([`EventRegistry::create`]).
    pub fn add_boxed(&mut self, sink: Box<dyn EventSink>) -> &mut Self {
        self.0.push(sink);
        self
    }
}

impl EventSink for EventSinks {
    fn record(&mut self, event: &AgentEvent) {
        for sink in &mut self.0 {
            sink.record(event);
        }
    }

    fn finish(&mut self) {
        for sink in &mut self.0 {
            sink.finish();
        }
    }
}

impl fmt::Debug for EventSinks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "EventSinks({})", self.0.len())
    }
}

/// Makes a sink for one run.
type Factory = Box<dyn Fn(&RunFacts) -> Box<dyn EventSink + Send> + Send + Sync>;

/// The sinks that can be asked for by name (`--event-log-handler`).
///
/// | name | what becomes of events |
/// |---|---|
/// | `null` | nothing |
/// | `console` | the run's milestones as JSON on stderr, in the reference's form |
/// | `dynamic_rendezvous` | nothing; register a sink that uses [`reference_rendezvous`](super::reference_rendezvous) to get the news of a dynamic rendezvous |
pub struct EventRegistry(BTreeMap<String, Factory>);

impl EventRegistry {
    /// The three names of the reference.
    pub fn with_defaults() -> Self {
        let mut registry = Self(BTreeMap::new());
        registry.register("null", |_| Box::new(|_: &AgentEvent| {}));
        registry.register("console", |facts| {
            Box::new(ConsoleEvents::new(facts.clone()))
        });
        registry.register("dynamic_rendezvous", |_| Box::new(|_: &AgentEvent| {}));
        registry
    }

    /// Gives a sink a name; whoever had it before has it no more.
    pub fn register(
        &mut self,
        name: &str,
        factory: impl Fn(&RunFacts) -> Box<dyn EventSink + Send> + Send + Sync + 'static,
    ) {
        self.0.insert(name.to_owned(), Box::new(factory));
    }

    /// The sink of that name for one run; `None` if nobody has the name.
    pub fn create(&self, name: &str, facts: &RunFacts) -> Option<Box<dyn EventSink + Send>> {
        self.0.get(name).map(|factory| factory(facts))
    }

    /// All names, sorted.
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
