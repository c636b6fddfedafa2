//! The agent of the process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rendezvous::Environment;
use rdzv_rpc::backend::{BackendOptions, BackendRegistry, InitArguments};
use rdzv_rpc::init_method::open_store;
use rdzv_rpc::options::RpcOptions;
use rdzv_rpc::{Methods, RpcAgent, RpcError, RpcErrorKind, current, init_rpc};
use rdzv_rpc_proto::worker::WorkerName;
use rdzv_testing::free_port;

use super::{LONG, TWICE, methods};

fn options(init_method: &str, deadline: Duration) -> Arc<dyn BackendOptions> {
    Arc::new(RpcOptions {
        init_method: init_method.to_owned(),
        init_deadline: deadline,
        ..RpcOptions::default()
    })
}

/// The address of a store that this process can host.
fn free_address() -> String {
    format!("tcp://127.0.0.1:{}", free_port())
}

fn init(place: &str, rank: u32, world_size: Option<u32>) -> Result<RpcAgent, RpcError> {
    let options = options(place, LONG);
    init_rpc(
        "first",
        None,
        Some(rank),
        world_size,
        Some(options),
        methods(),
    )
}

fn assert_none() {
    let error = current().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NotInitialized);
    assert_eq!(
        error.to_string(),
        "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."
    );
}

/// At an address where nobody answers: looking there would take the whole deadline.
fn assert_taken() {
    let begun = Instant::now();
    let error = init("tcp://192.0.2.1:1", 1, None).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::AlreadyInitialized);
    assert_eq!(error.to_string(), "RPC is already initialized");
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
}

// One test, because there is one process.
#[test]
fn a_process_has_one_agent_until_it_shuts_down() {
    assert_none();

    // A dynamic group: no world size.
    let place = free_address();
    let agent = init(&place, 0, None).unwrap();
    assert_eq!(current().unwrap().me(), agent.me());
    assert_eq!(agent.call("first", TWICE, &4).wait().unwrap(), 8);
    assert_taken();
    agent.shutdown(LONG).unwrap();
    assert_none();

    // What goes wrong leaves the place free.
    let begun = Instant::now();
    let unreachable = options("tcp://192.0.2.1:1", LONG);
    let error = init_rpc(
        "no name",
        None,
        Some(1),
        None,
        Some(unreachable),
        Methods::new(),
    );
    assert_eq!(error.unwrap_err().kind, RpcErrorKind::InvalidArgument);
    assert!(begun.elapsed() < LONG / 2);
    let place = free_address();
    let short = options(&place, Duration::from_millis(300));
    let error = init_rpc("first", None, Some(0), Some(2), Some(short), Methods::new());
    assert_eq!(error.unwrap_err().kind, RpcErrorKind::Deadline);
    assert_none();

    // A static group; while it forms, the place is taken and nobody is there yet.
    let place = free_address();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| init(&place, 0, Some(2)).unwrap());
        // The first hosts the store, so it has begun when the store is there.
        let nowhere = Environment::of([("", ""); 0]);
        let meeting = open_store(&place, Some(1), Some(2), LONG, nowhere).unwrap();
        assert_taken();
        assert_none();
        let backend = BackendRegistry::of_process().get("TENSORPIPE").unwrap();
        let arguments = InitArguments {
            store: meeting.store,
            name: WorkerName::new("second").unwrap(),
            rank: meeting.rank,
            world_size: Some(2),
            methods: methods(),
        };
        let second = backend.init(arguments, &*options(&place, LONG)).unwrap();
        let first = first.join().unwrap();
        assert_eq!(
            current().unwrap().call("second", TWICE, &3).wait().unwrap(),
            6
        );
        assert_taken();
        let ended = scope.spawn(move || second.shutdown(true, LONG).unwrap());
        first.shutdown(LONG).unwrap();
        ended.join().unwrap();
    });
    assert_none();

    // Whoever just stops is not the agent of the process any more either.
    let place = free_address();
    let agent = init(&place, 0, None).unwrap();
    agent.stop();
    assert_none();
}
