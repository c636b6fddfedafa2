//! Which arenas this process has: so that bytes are recognised wherever they come from.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::Shared;

/// By the address of the first byte.
static ARENAS: RwLock<BTreeMap<usize, Weak<Shared>>> = RwLock::new(BTreeMap::new());

pub(super) fn enter(shared: &Arc<Shared>) {
    let mut arenas = ARENAS.write().unwrap_or_else(PoisonError::into_inner);
    arenas.insert(shared.start(), Arc::downgrade(shared));
}

pub(super) fn leave(start: usize) {
    let mut arenas = ARENAS.write().unwrap_or_else(PoisonError::into_inner);
    arenas.remove(&start);
}

/// The arena in which this address is.
pub(super) fn find(address: usize) -> Option<Arc<Shared>> {
    let arenas = ARENAS.read().unwrap_or_else(PoisonError::into_inner);
    let (start, shared) = arenas.range(..=address).next_back()?;
    // Whoever has bytes of an arena keeps it: one that is about to go has none.
    let start = *start;
    let shared = shared.upgrade();
    // Its last handle must not be dropped while the list is locked, since it would leave it.
    drop(arenas);
    shared.filter(|shared| address < start + shared.memory.length())
}
