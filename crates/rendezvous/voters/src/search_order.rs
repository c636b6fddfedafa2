//! The places at which an agent asks for the coordinator, in the order in which it asks.

use std::time::Duration;

/// The time for one attempt to connect to a place, and for a voter to name the coordinator: while one is elected, it
/// answers as soon as that is over.
pub const ATTEMPT: Duration = Duration::from_millis(500);

/// The number of times that it doubles. Thousands of agents look for the coordinator at once, and a voter that has not come
/// to an agent in time has done its work in vain.
const DOUBLINGS: u32 = 2;

/// The places at which the coordinator may be.
///
/// A voter that is not the coordinator says where that is, if it knows; that place is asked next.
/// Else the places are asked in turn. After a coordinator that is gone, the next place comes first:
/// its machine may be gone too, and then the attempt to connect to it would take long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchOrder {
    places: Vec<String>,
    /// The place that was asked last.
    at: usize,
    hint: Option<usize>,
    found: Option<usize>,
    /// Searches in a row that have found nothing.
    failures: u32,
}

impl SearchOrder {
    /// The first one is asked first.
    pub fn new(places: Vec<String>) -> Self {
        Self {
            at: places.len().saturating_sub(1),
            places,
            hint: None,
            found: None,
            failures: 0,
        }
    }

    /// The number of places.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The place to ask now, by its index.
    pub fn advance(&mut self) -> usize {
        let next = (self.at + 1) % self.places.len().max(1);
        self.at = self.hint.take().unwrap_or(next);
        self.at
    }

    /// The coordinator is at this place.
    pub fn found(&mut self, place: usize) {
        (self.at, self.hint, self.failures) = (place, None, 0);
        self.found = Some(place);
    }

    /// The place at which the coordinator was last, as far as one was found.
    pub fn found_at(&self) -> Option<usize> {
        self.found
    }

    /// No place was the coordinator.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// The time for the next attempt.
    pub fn attempt(&self) -> Duration {
        ATTEMPT * 2_u32.pow(self.failures.min(DOUBLINGS))
    }

    /// All places but that of the coordinator, the next one first.
    pub fn others(&self) -> Vec<usize> {
        let count = self.places.len();
        (1..count).map(|next| (self.at + next) % count).collect()
    }

    /// These are the places from here on. The one that was asked last stays so, if it is among them.
    pub fn replace(&mut self, places: Vec<String>) {
        let at = self.places.get(self.at);
        let found = at.and_then(|at| places.iter().position(|place| place == at));
        self.at = found.unwrap_or(places.len().saturating_sub(1));
        (self.places, self.hint) = (places, None);
    }

    /// The coordinator may be at this place.
    pub fn suppose(&mut self, place: usize) {
        self.hint = Some(place);
    }

    /// A voter has said, while there is a connection to the coordinator, that it is at this endpoint. Returns whether that is
    /// another one of the places; it is then asked next.
    pub fn has_moved(&mut self, coordinator: &str) -> bool {
        let at = self.at;
        self.elsewhere(coordinator);
        self.hint = self.hint.take_if(|hint| *hint != at);
        self.hint.is_some()
    }

    /// The voter that was asked last has said that the coordinator is at this endpoint, which may be its own by now.
    /// Returns whether it is one of the places; others are not believed.
    pub fn elsewhere(&mut self, coordinator: &str) -> bool {
        let mut places = self.places.iter();
        self.hint = places.position(|place| place == coordinator);
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
    fn the_places_are_asked_in_turn() {
        let mut order = order();
        let asked: Vec<usize> = (0..4).map(|_| order.advance()).collect();
        assert_eq!(asked, [0, 1, 2, 0]);
    }

    #[test]
    fn the_place_that_a_voter_names_is_asked_next() {
        let mut order = order();
        assert_eq!(order.advance(), 0);
        assert!(order.elsewhere("c"));
        assert_eq!(order.advance(), 2);
        // It is gone since: the others are asked before it.
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
    fn after_a_search_in_vain_places_have_more_time() {
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
    fn the_places_can_change() {
        let mut order = order();
        order.found(1);
        order.replace(["c", "b"].map(str::to_owned).to_vec());
        assert_eq!(order.others(), [0]);
        order.replace(["c", "d", "e"].map(str::to_owned).to_vec());
        assert_eq!([order.advance(), order.advance()], [0, 1]);
    }

    #[test]
    fn a_place_that_is_none_is_not_believed() {
        let mut order = order();
        assert_eq!(order.advance(), 0);
        for named in ["elsewhere", ""] {
            assert!(!order.elsewhere(named), "{named}");
        }
        assert_eq!(order.advance(), 1);
    }
}
