//! Order in which an agent asks the endpoints for the coordinator.

use std::time::Duration;

/// Time for one attempt: to connect, and to receive the coordinator's endpoint.
///
/// During an election, a voter answers as soon as the election is over.
pub const ATTEMPT: Duration = Duration::from_millis(500);

/// Maximum number of times that [`ATTEMPT`] doubles.
///
/// Thousands of agents may search at the same time. With a constant time, a slow voter would answer
/// only agents that have already timed out.
const DOUBLINGS: u32 = 2;

/// Endpoints at which the coordinator may be.
///
/// A voter that is not the coordinator names the coordinator's endpoint, if it knows it. The agent
/// asks that endpoint next. Otherwise it asks the endpoints in turn. After the loss of a
/// coordinator, the agent starts with the next endpoint: a connection to a lost machine would take
/// long to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchOrder {
    endpoints: Vec<String>,
    /// Index of the endpoint that was asked last.
    at: usize,
    hint: Option<usize>,
    found: Option<usize>,
    /// Number of consecutive searches that found no coordinator.
    failures: u32,
}

impl SearchOrder {
    /// Creates a search that starts with the first endpoint.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            at: endpoints.len().saturating_sub(1),
            endpoints,
            hint: None,
            found: None,
            failures: 0,
        }
    }

    /// Number of endpoints.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// `true` if there are no endpoints.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Returns the index of the endpoint to ask now.
    pub fn advance(&mut self) -> usize {
        let next = (self.at + 1) % self.endpoints.len().max(1);
        self.at = self.hint.take().unwrap_or(next);
        self.at
    }

    /// Records that the coordinator is at this endpoint.
    pub fn found(&mut self, index: usize) {
        (self.at, self.hint, self.failures) = (index, None, 0);
        self.found = Some(index);
    }

    /// Index of the endpoint at which the coordinator was found last.
    ///
    /// It is not updated when the endpoints are replaced.
    pub fn found_at(&self) -> Option<usize> {
        self.found
    }

    /// Records that a search found no coordinator.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Time limit of the next attempt.
    pub fn attempt(&self) -> Duration {
        ATTEMPT * 2_u32.pow(self.failures.min(DOUBLINGS))
    }

    /// Indexes of all endpoints except the current one, the next one first.
    pub fn others(&self) -> Vec<usize> {
        let count = self.endpoints.len();
        (1..count).map(|next| (self.at + next) % count).collect()
    }

    /// Replaces the endpoints; keeps the position if its endpoint is still listed.
    pub fn replace(&mut self, endpoints: Vec<String>) {
        let at = self.endpoints.get(self.at);
        let found = at.and_then(|at| endpoints.iter().position(|endpoint| endpoint == at));
        self.at = found.unwrap_or(endpoints.len().saturating_sub(1));
        (self.endpoints, self.hint) = (endpoints, None);
    }

    /// Asks this endpoint next, because the coordinator may be there.
    pub fn suppose(&mut self, index: usize) {
        self.hint = Some(index);
    }

    /// Handles a voter's report about the coordinator's endpoint.
    ///
    /// The agent is connected to a coordinator. Returns `true` if the report names another one of
    /// the endpoints, which is then asked next.
    pub fn has_moved(&mut self, coordinator: &str) -> bool {
        let at = self.at;
        self.elsewhere(coordinator);
        self.hint = self.hint.take_if(|hint| *hint != at);
        self.hint.is_some()
    }

    /// Handles the answer of the voter that was asked last.
    ///
    /// The voter itself may have become the coordinator. Returns `true` if the answer names one of
    /// the endpoints; other answers are ignored.
    pub fn elsewhere(&mut self, coordinator: &str) -> bool {
        let mut endpoints = self.endpoints.iter();
        self.hint = endpoints.position(|endpoint| endpoint == coordinator);
        self.hint.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> SearchOrder {
        SearchOrder::new(["a", "b", "c"].map(str::to_owned).to_vec())
    }

    #[test]
    fn the_endpoints_are_asked_in_turn() {
        let mut order = order();
        let asked: Vec<usize> = (0..4).map(|_| order.advance()).collect();
        assert_eq!(asked, [0, 1, 2, 0]);
    }

    #[test]
    fn the_endpoint_that_a_voter_names_is_asked_next() {
        let mut order = order();
        assert_eq!(order.advance(), 0);
        assert!(order.elsewhere("c"));
        assert_eq!(order.advance(), 2);
        // If the coordinator is lost again, the agent asks the other endpoints first.
        order.found(2);
        assert_eq!([order.advance(), order.advance()], [0, 1]);
    }

    #[test]
    fn a_coordinator_that_is_said_to_be_elsewhere_is_looked_for_there() {
        let mut order = order();
        order.found(1);
        assert_eq!(order.others(), [2, 0]);
        assert!(!order.has_moved("b"));
        assert!(!order.has_moved("elsewhere"));
        assert_eq!(order.clone().advance(), 2);
        assert!(order.has_moved("a"));
        assert_eq!(order.advance(), 0);
    }

    #[test]
    fn after_a_search_in_vain_endpoints_have_more_time() {
        let mut order = order();
        let mut attempts = Vec::new();
        for _ in 0..4 {
            attempts.push(order.attempt().as_millis());
            order.failed();
        }
        assert_eq!(attempts, [500, 1000, 2000, 2000]);
        order.found(1);
        assert_eq!(order.attempt(), ATTEMPT);
    }

    #[test]
    fn the_endpoints_can_change() {
        let mut order = order();
        order.found(1);
        order.replace(["c", "b"].map(str::to_owned).to_vec());
        assert_eq!(order.others(), [0]);
        order.replace(["c", "d", "e"].map(str::to_owned).to_vec());
        assert_eq!([order.advance(), order.advance()], [0, 1]);
    }

    #[test]
    fn an_endpoint_that_is_none_is_not_believed() {
        let mut order = order();
        assert_eq!(order.advance(), 0);
        for named in ["elsewhere", ""] {
            assert!(!order.elsewhere(named), "{named}");
        }
        assert_eq!(order.advance(), 1);
    }
}
