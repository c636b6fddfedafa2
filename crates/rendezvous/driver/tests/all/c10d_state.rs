//! State of a run in any store: tokens, races, and absent keys.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::RendezvousBackend;
use rdzv_rendezvous::dynamic::node::describe;
use rdzv_rendezvous::dynamic::{C10dState, Driver, DriverOptions, SharedState, StateToken};
use rdzv_rendezvous_proto::Settings;
use rdzv_store::{
    FileStore, HashStore, PrefixStore, Store, StorePolicy, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};
use tempfile::TempDir;

use crate::support::{member, server};

const KEY: &str = "torch.rendezvous.run";
const MARK: &[u8] = b"Y2FuaW1hZGFt";

/// One store of each kind, and the objects that keep them alive.
struct Stores {
    stores: Vec<Arc<dyn Store>>,
    _server: TcpStoreServer,
    _folder: TempDir,
}

fn stores() -> Stores {
    let server = server();
    let folder = TempDir::new().unwrap();
    let file = FileStore::open(folder.path().join("store"), None).unwrap();
    let tcp = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", server.port())).unwrap();
    let inner: Arc<dyn Store> = Arc::new(HashStore::new());
    Stores {
        stores: vec![
            Arc::new(tcp),
            Arc::new(file),
            Arc::new(HashStore::new()),
            Arc::new(PrefixStore::new("mine", inner)),
        ],
        _server: server,
        _folder: folder,
    }
}

fn run() -> RunId {
    RunId::new("run")
}

fn state(store: &Arc<dyn Store>) -> C10dState {
    C10dState::new(Arc::clone(store), &run()).unwrap()
}

/// Returns the stored value and its token.
fn held(state: &mut C10dState) -> Option<(Vec<u8>, StateToken)> {
    let held = state.get().unwrap();
    held.map(|(state, token)| (state.to_vec(), token))
}

/// Writes a value.
///
/// Returns `true` if the write won, and the value stored after it.
fn write(state: &mut C10dState, value: &[u8], token: Option<&StateToken>) -> (bool, Vec<u8>) {
    let written = state.set(value, token).unwrap();
    let now = written.now.map(|(state, _)| state.to_vec());
    (written.won, now.unwrap_or_default())
}

#[test]
fn a_new_run_has_a_mark_and_no_state() {
    for store in stores().stores {
        assert_eq!(held(&mut state(&store)), None, "{store:?}");
        assert_eq!(store.get(KEY).unwrap(), MARK);
        // A later node does not overwrite the value.
        store.set(KEY, b"YQ==").unwrap();
        let token = StateToken(b"YQ==".to_vec());
        assert_eq!(held(&mut state(&store)), Some((b"a".to_vec(), token)));
    }
}

#[test]
fn the_writer_with_the_latest_token_wins() {
    for store in stores().stores {
        let (mut one, mut other) = (state(&store), state(&store));
        assert_eq!(write(&mut one, b"a", None), (true, b"a".to_vec()));
        let (_, first) = held(&mut other).unwrap();
        assert_eq!(write(&mut other, b"b", Some(&first)), (true, b"b".to_vec()));
        // The race is lost: the write returns the other state, with a token for the next attempt.
        let lost = one.set(b"c", Some(&first)).unwrap();
        let (now, latest) = lost.now.unwrap();
        assert_eq!((lost.won, &now[..]), (false, &b"b"[..]));
        assert_eq!(write(&mut one, b"c", Some(&latest)), (true, b"c".to_vec()));
    }
}

#[test]
fn tokens_that_were_never_given_out_lose() {
    for store in stores().stores {
        let mut one = state(&store);
        let token = |text: &[u8]| StateToken(text.to_vec());
        // There is no state yet.
        let early = one.set(b"a", Some(&token(b"YQ=="))).unwrap();
        assert_eq!((early.won, early.now), (false, None), "{store:?}");
        assert_eq!(
            write(&mut one, b"a", Some(&token(b""))),
            (true, b"a".to_vec())
        );
        for wrong in [&b""[..], b"never", b"\xff\x00", MARK] {
            let (won, now) = write(&mut one, b"b", Some(&token(wrong)));
            assert_eq!((won, now), (false, b"a".to_vec()), "{wrong:?} at {store:?}");
        }
        assert_eq!(write(&mut one, b"b", None), (false, b"a".to_vec()));
    }
}

#[test]
fn equal_states_of_two_writers_have_both_won() {
    for store in stores().stores {
        let (mut one, mut other) = (state(&store), state(&store));
        assert!(write(&mut one, b"a", None).0);
        assert!(write(&mut other, b"a", None).0);
    }
}

#[test]
fn a_key_that_vanishes_is_a_run_without_a_state() {
    for store in stores().stores {
        let mut one = state(&store);
        assert!(write(&mut one, b"a", None).0);
        let (_, token) = held(&mut one).unwrap();
        store.delete_key(KEY).unwrap();
        let lost = one.set(b"b", Some(&token)).unwrap();
        assert_eq!((lost.won, lost.now), (false, None), "{store:?}");
        assert_eq!(write(&mut one, b"b", None), (true, b"b".to_vec()));
        store.delete_key(KEY).unwrap();
        assert_eq!(held(&mut one), None);
    }
}

#[test]
fn of_many_writers_one_wins_each_time() {
    const WRITERS: u8 = 8;
    for store in stores().stores {
        let written = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let mut mine = C10dState::new(Arc::from(store.try_clone().unwrap()), &run());
                    scope.spawn(move || {
                        let mine = mine.as_mut().unwrap();
                        let mut token = None;
                        let mut known = Vec::new();
                        loop {
                            known.push(number);
                            let written = mine.set(&known, token.as_ref()).unwrap();
                            if written.won {
                                return known.len();
                            }
                            let (now, latest) = written.now.unwrap();
                            (known, token) = (now.to_vec(), Some(latest));
                        }
                    })
                })
                .collect();
            let lengths = writers.into_iter().map(|writer| writer.join().unwrap());
            let mut lengths: Vec<usize> = lengths.collect();
            lengths.sort_unstable();
            lengths
        });
        let each_once: Vec<usize> = (1..=usize::from(WRITERS)).collect();
        assert_eq!(written, each_once, "{store:?}");
    }
}

#[test]
fn failures_have_the_classes_of_the_reference() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let no_run = C10dState::new(Arc::clone(&store), &RunId::new("")).unwrap_err();
    assert_eq!(no_run.class(), "ValueError");
    assert_eq!(no_run.to_string(), "The run id must be a non-empty string.");
    let mut one = state(&store);
    store.set(KEY, b"a").unwrap();
    for error in [one.get().unwrap_err(), one.set(b"b", None).unwrap_err()] {
        assert_eq!(error.class(), "RendezvousStateError", "{error}");
    }
    let Stores {
        stores, _server, ..
    } = stores();
    let mut remote = state(&stores[0]);
    _server.shutdown(Duration::ZERO);
    let error = remote.get().unwrap_err();
    assert_eq!(error.class(), "RendezvousConnectionError", "{error}");
}

#[test]
fn nodes_meet_over_any_store() {
    for store in stores().stores {
        let nodes: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::from(store.try_clone().unwrap());
                let options = DriverOptions {
                    run_id: run(),
                    settings: Settings::new(2, 2),
                    me: describe("127.0.0.1".to_owned()),
                    timeout: Duration::from_secs(30),
                    policy: StorePolicy::default(),
                };
                let state = C10dState::new(store, &run()).unwrap();
                let mut node = Driver::start(Box::new(state), options).unwrap();
                thread::spawn(move || {
                    let info = node.join(&member()).unwrap();
                    (info.rank, info.world_size, info.master_port, node)
                })
            })
            .collect();
        let joined: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
        let mut ranks: Vec<GroupRank> = joined.iter().map(|(rank, ..)| *rank).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [GroupRank(0), GroupRank(1)], "{store:?}");
        assert_eq!(joined[0].2, joined[1].2);
        assert!(joined.iter().all(|(_, size, ..)| *size == 2));
    }
}
