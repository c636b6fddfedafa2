//! Init-method URLs: results, host of the store, and all texts of torchelastic.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdzv_core::rank::Rank;
use rdzv_rendezvous::url::{
    Joined, Registry, Url, UrlHandler, UrlOptions, UrlRendezvous, UrlStore, register_handler,
    rendezvous,
};
use rdzv_rendezvous::{Environment, RendezvousError};
use rdzv_store::{HashStore, Store};
use rdzv_testing::free_port;

use crate::support::server;

/// Separate environment for each member, so that tests can run in parallel.
fn options(variables: &[(&str, &str)]) -> UrlOptions {
    UrlOptions {
        timeout: Duration::from_secs(30),
        environment: Environment::of(variables.iter().copied()),
        ..UrlOptions::default()
    }
}

fn find(url: &str, variables: &[(&str, &str)]) -> Result<UrlRendezvous, RendezvousError> {
    Registry::with_defaults().rendezvous(url, None, None, options(variables))
}

fn join(url: &str, variables: &[(&str, &str)]) -> Result<Joined, RendezvousError> {
    find(url, variables)?.join()
}

fn refused(url: &str, variables: &[(&str, &str)]) -> String {
    join(url, variables).unwrap_err().to_string()
}

/// Checks that two members share a store: each reads what the other wrote.
fn assert_meet(first: impl FnOnce() -> Joined + Send, second: impl FnOnce() -> Joined + Send) {
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = scope.spawn(second);
        (first.join().unwrap(), second.join().unwrap())
    });
    assert_eq!((first.rank, second.rank), (Rank(0), Rank(1)));
    assert_eq!((first.world_size, second.world_size), (2, 2));
    first.store.set("from first", b"hello").unwrap();
    assert_eq!(second.store.get("from first").unwrap(), "hello");
    let group = second.into_group_store();
    group.set("k", b"v").unwrap();
    assert_eq!(first.store.get("default_pg/k").unwrap(), "v");
}

#[test]
fn members_meet_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let url = |rank: u32| {
        let path = directory.path().join("store").display().to_string();
        format!("file://{path}?rank={rank}&world_size=2")
    };
    assert_meet(
        || join(&url(0), &[]).unwrap(),
        || join(&url(1), &[]).unwrap(),
    );
    let left: Vec<_> = directory.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "the last one removes the file: {left:?}");
}

#[test]
fn rank_0_hosts_the_store_of_a_tcp_url() {
    let port = free_port();
    let url = |rank: u32| format!("tcp://localhost:{port}?rank={rank}&world_size=2&use_libuv=0");
    assert_meet(
        || join(&url(0), &[]).unwrap(),
        || join(&url(1), &[]).unwrap(),
    );
}

#[test]
fn rank_0_hosts_the_store_of_an_env_url() {
    let port = free_port();
    let port = port.to_string();
    let member = |rank: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ];
        join("env://", &variables).unwrap()
    };
    assert_meet(|| member("0"), || member("1"));
}

#[test]
fn rank_and_world_size_may_be_arguments() {
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let member = |rank| {
        Registry::with_defaults()
            .rendezvous(&url, Some(rank), Some(2), options(&[]))
            .unwrap()
            .join()
            .unwrap()
    };
    assert_meet(|| member(0), || member(1));
}

#[test]
fn with_an_agents_store_nobody_hosts_and_nobody_waits() {
    let agent = server();
    let port = agent.port().to_string();
    let variables = |rank| {
        [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ]
    };
    let first = join("env://", &variables("0")).unwrap();
    assert_eq!(first.store.num_keys().unwrap(), 1, "init/ counts the one");
    // Rank and world size in the query override the environment.
    let second = join("env://?rank=1&world_size=3", &variables("0")).unwrap();
    assert_eq!((second.rank, second.world_size), (Rank(1), 3));
    first.store.set("k", b"v").unwrap();
    assert_eq!(second.store.get("k").unwrap(), "v");
}

#[test]
fn an_agents_store_at_another_address_is_not_this_one() {
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}?rank=0&world_size=1");
    let variables = [
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("MASTER_ADDR", "node-a"),
        ("MASTER_PORT", "29500"),
    ];
    join(&url, &variables)
        .unwrap()
        .store
        .set("k", b"v")
        .unwrap();
}

#[test]
fn a_rendezvous_is_had_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store").display().to_string();
    let file = format!("file://{path}?rank=0&world_size=1");
    let variables = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ];
    for (url, method) in [
        (&*file, "rerendezvous using file://"),
        (
            "tcp://127.0.0.1:0?rank=0&world_size=1",
            "re-rendezvous using tcp://",
        ),
        ("env://", "re-rendezvous using env://"),
    ] {
        let mut rendezvous = find(url, &variables).unwrap();
        let _joined = rendezvous.join().unwrap();
        assert_eq!(
            rendezvous.join().unwrap_err().to_string(),
            format!("Unable to perform {method} method")
        );
    }
}

/// Checks that each URL is refused with its text after PyTorch's prefix.
fn assert_wrong(urls: &[(&str, &str)]) {
    for (url, text) in urls {
        let (scheme, _) = url.split_once(':').unwrap();
        assert_eq!(
            refused(url, &[]),
            format!("Error initializing torch.distributed using {scheme}:// rendezvous: {text}")
        );
    }
}

#[test]
fn what_is_missing_in_a_tcp_url_is_named_in_order() {
    assert_wrong(&[
        ("tcp://h", "port number missing"),
        ("tcp://h:1", "rank parameter missing"),
        ("tcp://h:1?rank=0", "world size parameter missing"),
        // Both parameters must be present before either is read as a number.
        ("tcp://h:1?rank=x", "world size parameter missing"),
    ]);
    let number = refused("tcp://h:1?rank=x&world_size=1", &[]);
    assert_eq!(number, "invalid literal for int() with base 10: 'x'");
    let host = refused("tcp://:1?rank=0&world_size=1", &[]);
    assert_eq!(host, "hostname cannot be None");
    assert_eq!(refused("tcp://h:65536", &[]), "Port out of range 0-65535");
}

#[test]
fn what_is_missing_in_a_file_url_is_named_in_order() {
    assert_wrong(&[
        ("file://host", "path missing"),
        ("file:///f", "rank parameter missing"),
        ("file:///f?rank=x", "world size parameter missing"),
    ]);
}

#[test]
fn what_is_missing_in_a_native_url_is_named() {
    assert_wrong(&[
        ("rdzv://h:1/job", "world size parameter missing"),
        (
            "rdzv://h:1/job?world_size=0",
            "world_size is 0: a job has at least one worker",
        ),
        (
            "rdzv://h:1/job?world_size=2&rank=2",
            "rank 2 of 2: ranks are 0 to 1",
        ),
        (
            "rdzv:///job?world_size=2",
            "host missing; write rdzv://host:port/job",
        ),
    ]);
}

/// Without this check, the other workers would wait for the whole timeout.
#[test]
fn a_rank_that_no_worker_of_the_job_can_have_is_refused() {
    let rank = "rank 2 of 2: ranks are 0 to 1";
    let size = "world_size is 0: a job has at least one worker";
    assert_wrong(&[
        ("tcp://h:1?rank=2&world_size=2", rank),
        ("tcp://h:1?rank=0&world_size=0", size),
        ("file:///f?rank=2&world_size=2", rank),
    ]);
    let variables = [
        ("RANK", "2"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "h"),
        ("MASTER_PORT", "1"),
    ];
    let text = refused("env://", &variables);
    assert!(text.ends_with(rank), "{text}");
    let opened = Registry::with_defaults().open("tcp://h:1", Some(2), Some(2), &options(&[]));
    let text = opened.unwrap_err().to_string();
    assert!(text.ends_with(rank), "{text}");
}

#[test]
fn a_name_with_two_values_is_refused() {
    let text = refused("tcp://h:1?rank=0&rank=1&world_size=2", &[]);
    assert!(
        text.ends_with("has rank=0 and rank=1: specify each name once"),
        "{text}"
    );
}

/// Rank 0 would wait for workers that cannot know its port.
#[test]
fn port_0_is_for_one_worker_alone() {
    for rank in [0, 1] {
        let url = format!("tcp://127.0.0.1:0?rank={rank}&world_size=2");
        let text = refused(&url, &[]);
        assert!(text.contains("port 0 of 127.0.0.1"), "{text}");
        let variables = [
            ("RANK", if rank == 0 { "0" } else { "1" }),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "0"),
        ];
        let text = refused("env://", &variables);
        assert!(text.contains("port 0 of 127.0.0.1"), "{text}");
    }
    let registry = Registry::with_defaults();
    let opened = registry.open("tcp://127.0.0.1:0", Some(1), None, &options(&[]));
    assert!(opened.unwrap_err().to_string().contains("port 0"));
    assert!(join("tcp://127.0.0.1:0?rank=0&world_size=1", &[]).is_ok());
}

#[test]
fn what_is_missing_in_the_environment_is_named_in_order() {
    let all = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "h"),
        ("MASTER_PORT", "70000"),
    ];
    for (index, (name, _)) in all.iter().enumerate() {
        let text = format!(
            "Error initializing torch.distributed using env:// rendezvous: environment variable \
             {name} expected, but not set"
        );
        assert_eq!(refused("env://", &all[..index]), text);
        let empty = [&all[..index], &[(*name, "")]].concat();
        assert_eq!(refused("env://", &empty), text, "an empty one is not set");
    }
    assert_eq!(
        refused("env://", &all),
        "port must have value from 0 to 65535 but was 70000."
    );
    let negative = [all[0], all[1], all[2], ("MASTER_PORT", "-1")];
    assert_eq!(
        refused("env://", &negative),
        "port must have value from 0 to 65535 but was -1."
    );
}

/// Runs workers of one URL with the given ranks, and returns all results.
fn native(url: &str, ranks: &[Option<u32>]) -> Vec<Result<Joined, String>> {
    thread::scope(|scope| {
        let workers: Vec<_> = ranks
            .iter()
            .map(|rank| {
                scope.spawn(move || {
                    let found =
                        Registry::with_defaults().rendezvous(url, *rank, Some(3), options(&[]));
                    let joined = found.and_then(|mut found| found.join());
                    joined.map_err(|error| error.to_string())
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    })
}

#[test]
fn the_workers_of_a_native_url_get_ranks_and_a_store() {
    let url = format!("rdzv://127.0.0.1:{}/job", free_port());
    let joined = native(&url, &[None, None, None]);
    let joined: Vec<Joined> = joined.into_iter().map(Result::unwrap).collect();
    let mut ranks: Vec<u32> = joined.iter().map(|joined| joined.rank.0).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    joined[0].store.set("from one", b"hello").unwrap();
    for one in &joined {
        assert_eq!(one.world_size, 3);
        assert_eq!(one.store.get("from one").unwrap(), "hello");
        assert!(matches!(one.store, UrlStore::Tcp(_)));
    }
    drop(joined);
    // The next start of the same job finds no keys of the first.
    let joined = native(&url, &[Some(2), Some(0), Some(1)]);
    let joined: Vec<Joined> = joined.into_iter().map(Result::unwrap).collect();
    for one in &joined {
        assert!(!one.store.check(&["from one"]).unwrap());
    }
}

#[test]
fn the_workers_of_a_native_url_may_say_their_ranks() {
    let url = format!("rdzv://127.0.0.1:{}", free_port());
    let joined = native(&url, &[Some(2), Some(0), Some(1)]);
    let ranks: Vec<u32> = joined
        .iter()
        .map(|one| one.as_ref().unwrap().rank.0)
        .collect();
    assert_eq!(ranks, [2, 0, 1]);
}

#[test]
fn a_rank_of_a_native_url_that_two_workers_give_is_refused() {
    let url = format!("rdzv://127.0.0.1:{}", free_port());
    let joined = native(&url, &[Some(2), Some(0), Some(2)]);
    // All workers fail, even the one with a unique rank: its group will never be complete.
    for one in joined {
        let error = one.unwrap_err();
        assert!(error.contains("two workers have rank 2"), "{error}");
    }
}

#[test]
fn a_url_with_rank_or_world_size_takes_none_as_arguments() {
    let registry = Registry::with_defaults();
    let url = "tcp://h:1?world_size=2";
    let error = registry.rendezvous(url, Some(0), None, options(&[]));
    assert_eq!(
        error.unwrap_err().to_string(),
        format!("The url: {url} has node-specific arguments(rank, world_size) already.")
    );
}

#[test]
fn schemes_are_registered_once() {
    let mut registry = Registry::with_defaults();
    let handler = |url: &Url, _: &UrlOptions| {
        Ok(Joined {
            store: UrlStore::Other(Box::new(HashStore::new())),
            rank: Rank(url.number("rank")?.unwrap_or(7)),
            world_size: 8,
        })
    };
    let unknown = registry.rendezvous("mine://x", None, None, options(&[]));
    assert_eq!(
        unknown.unwrap_err().to_string(),
        "No rendezvous handler for mine://"
    );
    registry.register("mine", handler).unwrap();
    assert_eq!(
        registry.register("mine", handler).unwrap_err().to_string(),
        "Rendezvous handler for mine:// already registered"
    );
    assert_eq!(
        registry.register("tcp", handler).unwrap_err().to_string(),
        "Rendezvous handler for tcp:// already registered"
    );
    let mut found = registry
        .rendezvous("mine://x?rank=3", None, None, options(&[]))
        .unwrap();
    assert_eq!(found.join().unwrap().rank, Rank(3));
    assert_eq!(
        found.join().unwrap_err().to_string(),
        "Unable to perform re-rendezvous using mine:// method"
    );
}

/// User-defined handler that receives keywords and supports several rounds.
struct Rounds;

impl UrlHandler for Rounds {
    fn join(&self, _: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let size = &options.keywords["size"];
        Ok(Joined {
            store: UrlStore::Other(Box::new(HashStore::new())),
            rank: Rank(0),
            world_size: size.parse().unwrap(),
        })
    }

    fn join_again(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let joined = self.join(url, options)?;
        Ok(Joined {
            world_size: joined.world_size - 1,
            ..joined
        })
    }
}

#[test]
fn a_handler_of_ones_own_gets_keywords_and_may_yield_rounds() {
    let mut registry = Registry::with_defaults();
    registry.register("rounds", Rounds).unwrap();
    let options = UrlOptions {
        keywords: [("size".to_owned(), "3".to_owned())].into(),
        ..options(&[])
    };
    let mut found = registry
        .rendezvous("rounds://", None, None, options)
        .unwrap();
    let sizes = [(); 2].map(|()| found.join().unwrap().world_size);
    assert_eq!(sizes, [3, 2]);
}

/// Groups that find their members themselves only open the store.
#[test]
fn a_store_is_opened_without_waiting_for_anybody() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("file://{}/store", folder.path().display());
    let (port, other) = (free_port(), free_port());
    let tcp = format!("tcp://127.0.0.1:{port}");
    let port = other.to_string();
    let env = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port)];
    let registry = Registry::with_defaults();
    for (url, variables) in [(&*file, &[][..]), (&tcp, &[]), ("env://", &env)] {
        // Rank 0 hosts the store if necessary. No worker knows the number of workers.
        let first = registry
            .open(url, Some(0), None, &options(variables))
            .unwrap();
        let second = registry
            .open(url, Some(1), None, &options(variables))
            .unwrap();
        first.store.set("key", b"value").unwrap();
        assert_eq!(second.store.get("key").unwrap(), "value");
        assert_eq!((first.rank, second.rank), (Rank(0), Rank(1)));
    }
    let refused = |url: &str, rank| {
        let opened = registry.open(url, rank, None, &options(&[]));
        opened.unwrap_err().to_string()
    };
    for scheme in ["tcp://h:1", "file:///x"] {
        let name = scheme.split(':').next().unwrap();
        assert_eq!(
            refused(scheme, None),
            format!(
                "Error initializing torch.distributed using {name}:// rendezvous: rank parameter \
                 missing"
            )
        );
    }
    assert!(refused("env://", None).ends_with("environment variable RANK expected, but not set"));
    assert_eq!(
        refused("what://", Some(0)),
        "No rendezvous handler for what://"
    );
    assert!(refused("tcp://h:1?rank=0", Some(0)).contains("node-specific arguments"));
}

#[test]
fn the_process_has_a_registry_too() {
    let store: Arc<HashStore> = Arc::default();
    let handler = move |_: &Url, _: &UrlOptions| {
        Ok(Joined {
            store: UrlStore::Other(store.try_clone()?),
            rank: Rank(0),
            world_size: 1,
        })
    };
    register_handler("of-process", handler).unwrap();
    let mut found = rendezvous("of-process://", None, None, options(&[])).unwrap();
    assert_eq!(found.join().unwrap().world_size, 1);
    assert!(rendezvous("of-no-handler://", None, None, options(&[])).is_err());
}

#[test]
fn thirty_minutes_are_the_limit_unless_another_one_is_given() {
    let given = UrlOptions::default().timeout;
    assert_eq!(given, Duration::from_secs(30 * 60));
}
