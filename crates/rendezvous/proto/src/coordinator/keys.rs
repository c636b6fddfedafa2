//! Names of store keys, as `torchrun` agents use them.
//!
//! ```text
//!   /torch.rendezvous.<run>                                     the state
//!   /torch.rendezvous.<run>.<round>/MASTER_ADDR, MASTER_PORT    endpoint of the workers' store
//!   /torch.rendezvous.<run>.<round>/torchelastic/role_info/0    rank 0 may write it after those
//!   …/torchelastic/role_info/<rank>, …/assigned_ranks/<rank>    role and ranks of a node's workers
//! ```

use rdzv_core::env::{MASTER_ADDR, MASTER_PORT};

/// Prefix of all keys.
pub const PREFIX: &str = "/torch.rendezvous.";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    State(String),
    OfFirst {
        run: String,
        round: u64,
        field: Field,
    },
}

/// A value that rank 0 stores in a round, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// Host of the workers' store.
    Addr,
    /// Port of the workers' store.
    Port,
    /// Role of rank 0.
    Role,
}

impl Field {
    /// Returns the last part of its key.
    fn name(self) -> &'static str {
        match self {
            Self::Addr => MASTER_ADDR,
            Self::Port => MASTER_PORT,
            Self::Role => "torchelastic/role_info/0",
        }
    }
}

/// Returns the key of a run's state.
pub(super) fn state(run: &str) -> Vec<u8> {
    format!("{PREFIX}{run}").into_bytes()
}

/// Returns the run, if the key is that of a state.
///
/// `None` for a key without the prefix. The keys of a round have the prefix too.
pub(super) fn run_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)
}

/// Returns the key of one half of a round's store endpoint.
pub(super) fn master(run: &str, round: u64, field: Field) -> Vec<u8> {
    format!("{PREFIX}{run}.{round}/{}", field.name()).into_bytes()
}

/// Returns the key of a node's role in a round.
pub(super) fn role_info(run: &str, round: u64, rank: u32) -> Vec<u8> {
    format!("{PREFIX}{run}.{round}/torchelastic/role_info/{rank}").into_bytes()
}

/// Returns the key of the ranks of a node's workers.
pub(super) fn assigned_ranks(run: &str, round: u64, rank: u32) -> Vec<u8> {
    format!("{PREFIX}{run}.{round}/torchelastic/assigned_ranks/{rank}").into_bytes()
}

/// Parses a key of a run that `known` accepts.
pub(super) fn parse(key: &[u8], known: impl Fn(&str) -> bool) -> Option<Key> {
    let name = std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)?;
    if known(name) {
        return Some(Key::State(name.to_owned()));
    }
    let mut fields = [Field::Addr, Field::Port, Field::Role].into_iter();
    fields.find_map(|field| {
        let round = name.strip_suffix(field.name())?.strip_suffix('/')?;
        let (run, round) = round.rsplit_once('.')?;
        let round = round.parse().ok()?;
        let run = known(run).then(|| run.to_owned())?;
        Some(Key::OfFirst { run, round, field })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_understood_also_when_run_ids_have_dots() {
        let known = |run: &str| run == "a.1" || run == "a";
        let understood = |key: &[u8]| parse(key, known);
        assert_eq!(
            understood(&state("a.1")),
            Some(Key::State("a.1".to_owned()))
        );
        let (run, round, field) = ("a.1".to_owned(), 7, Field::Port);
        assert_eq!(
            understood(&master("a.1", 7, Field::Port)),
            Some(Key::OfFirst { run, round, field })
        );
        let first = b"/torch.rendezvous.a.3/torchelastic/role_info/0";
        let (run, round, field) = ("a".to_owned(), 3, Field::Role);
        let role = Key::OfFirst { run, round, field };
        assert_eq!(understood(first), Some(role));
        for other in [
            "/torch.rendezvous.b",
            "/torch.rendezvous.a.x/MASTER_ADDR",
            "/a",
        ] {
            assert_eq!(understood(other.as_bytes()), None);
        }
    }
}
