//! Tests of workers that replace others.

use rdzv_rpc::RpcErrorKind;

use super::{LONG, TWICE, join, store, wait_for};

#[test]
fn a_successor_is_called_at_the_first_try() {
    let store = store();
    let old = join(&store, "old", 0);
    let worker = join(&store, "worker", 1);
    wait_for("the worker is seen", || old.worker("worker").is_ok());
    assert_eq!(old.call("worker", TWICE, &1).wait().unwrap(), 2);
    for round in 2..5 {
        let former = old.traffic().connections;
        if round == 2 {
            worker.shutdown(LONG).unwrap();
        }
        wait_for("the worker has left", || old.worker("worker").is_err());
        let successor = join(&store, "worker", 1);
        wait_for("the successor is seen", || old.worker("worker").is_ok());
        // The old connection belongs to an earlier life of the worker.
        assert_eq!(old.call("worker", TWICE, &round).wait().unwrap(), 2 * round);
        assert_eq!(old.call(1, TWICE, &round).wait().unwrap(), 2 * round);
        assert_eq!(
            successor.call("old", TWICE, &round).wait().unwrap(),
            2 * round
        );
        assert!(old.traffic().connections > former);
        successor.shutdown(LONG).unwrap();
    }
    // A worker with another name can take the rank.
    wait_for("the worker has left", || old.worker("worker").is_err());
    let other = join(&store, "other", 1);
    wait_for("the other is seen", || old.worker("other").is_ok());
    assert_eq!(old.call("other", TWICE, &5).wait().unwrap(), 10);
    assert_eq!(old.call(1, TWICE, &6).wait().unwrap(), 12);
    assert_eq!(other.call(0, TWICE, &7).wait().unwrap(), 14);
    let error = old.call("worker", TWICE, &8).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker);
    other.shutdown(LONG).unwrap();
    old.shutdown(LONG).unwrap();
}
