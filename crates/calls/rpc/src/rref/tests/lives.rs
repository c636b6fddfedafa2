//! Tests of groups that begin and end repeatedly in one process.

use super::*;
use crate::options::RpcOptions;
use rdzv_store::{HashStore, Store};

/// Creates the two members of a group at the same time.
fn pair(store: &Arc<dyn Store>) -> Vec<RpcAgent> {
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..2)
            .map(|rank| {
                let store = Arc::clone(store);
                scope.spawn(move || {
                    RpcAgent::builder(format!("w{rank}"))
                        .rank(rank)
                        .world_size(2)
                        .store(store)
                        .methods(methods())
                        .options(RpcOptions {
                            init_deadline: LONGEST,
                            timeout: LONGEST.into(),
                            ..RpcOptions::default()
                        })
                        .connect()
                })
            })
            .collect();
        let both = both.into_iter().map(|one| one.join().unwrap().unwrap());
        both.collect()
    })
}

fn count(of: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{of}")).map_or(0, Iterator::count)
}

#[test]
fn twenty_lives_in_one_process_leave_nothing_and_end_as_fast() {
    let mut files = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..20 {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let agents = pair(&store);
        let counter = agents[0].remote(1, COUNTER, &1).unwrap();
        assert_eq!(counter.rpc_sync(ADD, &1, NOW), Ok(2));
        let own = RRef::new(&agents[0], 5_u64).unwrap();
        assert_eq!(agents[0].call(1, VALUE, &own).wait(), Ok(5));
        let user = agents[1]
            .call(0, ECHO, &agents[1].remote(0, NUMBER, &8).unwrap())
            .wait();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for agent in &agents {
                scope.spawn(move || agent.shutdown(Duration::from_secs(10)).unwrap());
            }
        });
        ends.push(begun.elapsed());
        // The references are still held at the end, and dropping them later has no effect.
        drop((counter, own, user));
        drop(agents);
        files.push((count("fd"), count("task")));
    }
    let last = ends[19];
    assert!(last < LONGEST, "{ends:?}");
    // Other tests of this process have files and threads too.
    assert!(files[19].0 < files[0].0 + 60, "{files:?}");
    assert!(files[19].1 < files[0].1 + 60, "{files:?}");
}
