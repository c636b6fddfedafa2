//! Metrics registry of torchelastic: named numbers and their sinks.
//!
//! Each point belongs to a group. A group has a separate sink or uses the default one, which drops
//! everything unless it is configured. The agent publishes torchelastic's names; see
//! [`AgentMetrics`](super::AgentMetrics).

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use rdzv_core::time::Wall;

/// Name of the default group.
pub const DEFAULT_GROUP: &str = "torchelastic";

/// One value at one time.
/// Its text form is torchelastic's line, `[⟨epoch⟩][⟨group⟩]: ⟨name⟩=⟨value⟩`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricPoint<'a> {
    /// Time of the value.
    pub at: Wall,
    /// Group of the point.
    pub group: &'a str,
    /// Name of the value.
    pub name: &'a str,
    /// Count or percentage, or milliseconds if the name ends with `.ms`.
    pub value: i64,
}

/// Receiver of points.
pub trait MetricsSink: Send {
    /// Publishes one point.
    /// The agent calls this between two decisions, so it must not block.
    fn publish(&mut self, point: &MetricPoint<'_>);
}

/// Sink that drops every point (`null`, the default).
#[derive(Debug, Clone, Copy, Default)]
pub struct NullMetrics;

impl MetricsSink for NullMetrics {
    fn publish(&mut self, _point: &MetricPoint<'_>) {}
}

/// Sink that writes every point on stdout (`console`), one line each.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConsoleMetrics;

impl MetricsSink for ConsoleMetrics {
    fn publish(&mut self, point: &MetricPoint<'_>) {
        // If stdout has no reader, there is nothing to do.
        let _ = std::io::stdout().write_all(format!("{point}\n").as_bytes());
    }
}

impl fmt::Display for MetricPoint<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, name, value) = (self.group, self.name, self.value);
        let seconds = self.at.unix_seconds();
        let micros = self.at.unix_micros().rem_euclid(1_000_000);
        write!(
            formatter,
            "[{seconds}.{micros:06}][{group}]: {name}={value}"
        )
    }
}

/// Sinks of points, by group.
pub struct MetricsRegistry {
    default: Box<dyn MetricsSink>,
    groups: BTreeMap<String, Box<dyn MetricsSink>>,
}

impl MetricsRegistry {
    /// Creates a registry that drops everything until it is configured.
    pub fn new() -> Self {
        Self {
            default: Box::new(NullMetrics),
            groups: BTreeMap::new(),
        }
    }

    /// Sets the sink of one group; `None` sets it for all groups without a sink.
    pub fn configure(&mut self, sink: impl MetricsSink + 'static, group: Option<&str>) {
        match group {
            Some(group) => {
                self.groups.insert(group.to_owned(), Box::new(sink));
            }
            None => self.default = Box::new(sink),
        }
    }

    /// Publishes one value in a group.
    pub fn publish(&mut self, at: Wall, group: &str, name: &str, value: i64) {
        let sink = self.groups.get_mut(group).unwrap_or(&mut self.default);
        sink.publish(&MetricPoint {
            at,
            group,
            name,
            value,
        });
    }
}

impl Default for MetricsRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MetricsRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MetricsRegistry")
            .field("groups", &self.groups.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Named(&'static str, Sender<String>);

    impl MetricsSink for Named {
        fn publish(&mut self, point: &MetricPoint<'_>) {
            self.1
                .send(format!("{} {}={}", self.0, point.name, point.value))
                .unwrap();
        }
    }

    #[test]
    fn points_go_to_the_sink_of_their_group_or_to_the_default_one() {
        let (sender, points) = channel();
        let mut registry = MetricsRegistry::new();
        registry.publish(Wall::default(), DEFAULT_GROUP, "dropped", 1);
        registry.configure(Named("default", sender.clone()), None);
        registry.configure(Named("mine", sender), Some("mine"));
        registry.publish(Wall::default(), DEFAULT_GROUP, "a", 2);
        registry.publish(Wall::default(), "mine", "b", 3);
        drop(registry);
        assert_eq!(
            points.iter().collect::<Vec<_>>(),
            ["default a=2", "mine b=3"]
        );
    }

    #[test]
    fn the_console_line_is_that_of_torchelastic() {
        let point = MetricPoint {
            at: Wall::from_unix_micros(1_790_000_123_000_450),
            group: DEFAULT_GROUP,
            name: "workers.default.run_total",
            value: 1,
        };
        assert_eq!(
            point.to_string(),
            "[1790000123.000450][torchelastic]: workers.default.run_total=1"
        );
    }
}
