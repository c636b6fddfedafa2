//! A worker that is only a member of a group, for tests of groups.
//!
//! It shows how groups form, change and end, and tests kill it.
//!
//! ```text
//! group_member join HOST:PORT NAME RANK LEASE_MS [DIE_BEFORE]
//! group_member form HOST:PORT NAME RANK WORLD_SIZE DEADLINE_MS [DIE_BEFORE]
//! ```
//!
//! The store at `HOST:PORT` is any TCP store, e.g. that of `rdzv store`. With `DIE_BEFORE` the
//! process kills itself before its request to the store with that number, counted from 0.
//!
//! The process prints `in` when it is in the group, and `view NAME …` for each state of the group.
//! It prints `detached KIND TEXT` when reports end, and `failed KIND TEXT` after an error. On the
//! input line `leave`, the process leaves the group; on `shutdown MS`, it waits for the others.
//! After either, it prints `left`. When its standard input ends, it exits without output.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rdzv_rpc::RpcError;
use rdzv_rpc::group::{Group, GroupChange, new_incarnation};
use rdzv_rpc_proto::device::DeviceData;
use rdzv_rpc_proto::directory::Member;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_store::{Store, StoreConnection, StoreError, TcpStore};
use rustix::process::{Signal, getpid, kill_process};

use crate::store_at;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [way, endpoint, name, rank, more @ ..] = &words[..] else {
        return Err("usage: group_member join|form HOST:PORT NAME RANK …".into());
    };
    let store = store_at(endpoint)?;
    let me = Member {
        info: WorkerInfo {
            id: WorkerId(rank.parse()?),
            name: WorkerName::new(*name)?,
        },
        address: Vec::new(),
        incarnation: new_incarnation(),
        device: DeviceData::default(),
    };
    let millis = |text: &str| text.parse().map(Duration::from_millis);
    let formed = match (*way, more) {
        ("join", [lease, die @ ..]) => {
            let store = mortal(store, die)?;
            Group::join(store, me, millis(lease)?, Duration::from_secs(60))
        }
        ("form", [world_size, deadline, die @ ..]) => {
            let store = mortal(store, die)?;
            Group::form(store, me, world_size.parse()?, millis(deadline)?)
        }
        _ => return Err("usage: see the head of this program's source".into()),
    };
    let group = match formed {
        Ok(group) => group,
        Err(error) => {
            tell_failure(&error);
            return Ok(());
        }
    };
    println!("in");
    group.on_change(tell);
    for line in stdin().lock().lines() {
        let line = line?;
        let ended = match line.split_once(' ') {
            None if line == "leave" => group.leave(),
            Some(("shutdown", deadline)) => group.shutdown_barrier(millis(deadline)?),
            _ => return Err(format!("unknown command {line:?}").into()),
        };
        match ended {
            Ok(()) => println!("left"),
            Err(error) => tell_failure(&error),
        }
    }
    Ok(())
}

fn tell_failure(error: &RpcError) {
    println!(
        "failed {} {}",
        error.kind,
        error.message.replace('\n', " | ")
    );
}

fn tell(change: &GroupChange) {
    match change {
        GroupChange::View(view) => {
            let members = view.members();
            let names: Vec<&str> = members.map(|member| member.info.name.as_str()).collect();
            println!("view {}", names.join(" "));
        }
        GroupChange::Detached(error) => println!("detached {} {}", error.kind, error.message),
        _ => {}
    }
}

/// Returns the store, with a limit on the number of requests if there is one.
fn mortal(store: TcpStore, die_before: &[&str]) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    Ok(match die_before {
        [] => Arc::new(store),
        [call, ..] => Arc::new(Mortal {
            inner: Box::new(store),
            left: Arc::new(AtomicI64::new(call.parse()?)),
        }),
    })
}

/// A store whose user is killed before a certain request.
#[derive(Debug)]
struct Mortal {
    inner: Box<dyn Store>,
    /// Number of remaining requests, for all clones together.
    left: Arc<AtomicI64>,
}

impl Mortal {
    fn alive(&self) -> &dyn Store {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            // This call cannot fail, and does not return.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        &*self.inner
    }
}

impl Store for Mortal {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.alive().set(key, value)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.alive().get(key)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.alive().add(key, delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.alive().compare_set(key, expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.alive().check(keys)
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.alive().wait(keys, timeout)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.alive().delete_key(key)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.alive().num_keys()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.alive().append(key, value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.alive().multi_get(keys)
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn connection(&self) -> Option<&dyn StoreConnection> {
        self.inner.connection()
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(Self {
            inner: self.inner.try_clone()?,
            left: Arc::clone(&self.left),
        }))
    }
}
