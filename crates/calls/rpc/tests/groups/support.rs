//! Workers as threads of a test.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::RpcError;
use rdzv_rpc::group::{Group, GroupChange, new_incarnation};
use rdzv_rpc_proto::device::{DeviceData, DeviceMap};
use rdzv_rpc_proto::directory::{GroupView, Member};
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_store::{HashStore, Store, TcpStore, TcpStoreOptions};

/// Far more time than any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A lease that a busy machine can renew, and that a test can wait for.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Returns a `HashStore` and a TCP store, for the tests.
pub(crate) fn stores() -> Vec<Arc<dyn Store>> {
    vec![Arc::new(HashStore::new()), tcp_store()]
}

/// Creates a server on a free port, and returns a client of it.
pub(crate) fn tcp_store() -> Arc<dyn Store> {
    let options = TcpStoreOptions {
        is_master: true,
        bind: Some("127.0.0.1".to_owned()),
        ..TcpStoreOptions::new("127.0.0.1", 0)
    };
    Arc::new(TcpStore::connect(options).unwrap())
}

/// Returns a separate connection for a worker.
pub(crate) fn connection(store: &Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::from(store.try_clone().unwrap())
}

pub(crate) fn worker(name: &str, id: u32) -> Member {
    Member {
        info: WorkerInfo {
            id: WorkerId(id),
            name: WorkerName::new(name).unwrap(),
        },
        address: format!("contact of {name}").into_bytes(),
        incarnation: new_incarnation(),
        device: DeviceData::default(),
    }
}

/// Creates a worker with devices and maps of them for other workers.
pub(crate) fn with_devices(
    name: &str,
    id: u32,
    device_count: u32,
    maps: &[(&str, &[(u32, u32)])],
) -> Member {
    let mut member = worker(name, id);
    member.device.device_count = device_count;
    for (target, pairs) in maps {
        let map = DeviceMap::new(pairs.iter().copied()).unwrap();
        member.device.device_maps.insert((*target).to_owned(), map);
    }
    member
}

/// Forms a static group with one thread for each of these workers.
/// All have the same world size. The results are in the order of the workers.
pub(crate) fn form_all(
    store: &Arc<dyn Store>,
    workers: Vec<Member>,
    deadline: Duration,
) -> Vec<Result<Group, RpcError>> {
    let world_size = u32::try_from(workers.len()).unwrap();
    let calls = workers.into_iter().map(|worker| (worker, world_size));
    form_each(store, calls.collect(), deadline)
}

/// Same as [`form_all`], with a separate world size for each worker.
pub(crate) fn form_each(
    store: &Arc<dyn Store>,
    workers: Vec<(Member, u32)>,
    deadline: Duration,
) -> Vec<Result<Group, RpcError>> {
    thread::scope(|scope| {
        let calls: Vec<_> = workers
            .into_iter()
            .map(|(worker, world_size)| {
                let store = connection(store);
                scope.spawn(move || Group::form(store, worker, world_size, deadline))
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

pub(crate) fn formed(results: Vec<Result<Group, RpcError>>) -> Vec<Group> {
    results.into_iter().map(Result::unwrap).collect()
}

/// Shuts down all members of a group at the same time.
pub(crate) fn shut_down(groups: &[Group]) {
    thread::scope(|scope| {
        for group in groups {
            scope.spawn(|| group.shutdown_barrier(LONG).unwrap());
        }
    });
}

pub(crate) fn join(store: &Arc<dyn Store>, worker: Member) -> Result<Group, RpcError> {
    Group::join(connection(store), worker, LEASE, LONG)
}

pub(crate) fn names(view: &GroupView) -> Vec<&str> {
    let members = view.members();
    members.map(|member| member.info.name.as_str()).collect()
}

/// Reports of a group, for a test to wait for.
pub(crate) struct Views(mpsc::Receiver<GroupChange>);

impl Views {
    pub(crate) fn of(group: &Group) -> Self {
        let (sender, receiver) = mpsc::channel();
        group.on_change(move |change| {
            // A test that has seen enough drops the receiver.
            let _ = sender.send(change.clone());
        });
        Self(receiver)
    }

    /// Waits for a view with exactly these names.
    pub(crate) fn wait_for(&self, wanted: &[&str]) -> Arc<GroupView> {
        let mut last = None;
        let end = Instant::now() + LONG;
        while let Ok(change) = self
            .0
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            match change {
                GroupChange::View(view) if names(&view) == wanted => return view,
                other => last = Some(other),
            }
        }
        panic!("waited for {wanted:?}, the last was {last:?}");
    }

    /// Waits for the last report, and returns its error.
    pub(crate) fn wait_for_the_end(&self) -> RpcError {
        loop {
            if let GroupChange::Detached(error) = self.0.recv_timeout(LONG).unwrap() {
                return error;
            }
        }
    }
}
