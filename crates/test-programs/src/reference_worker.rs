//! A worker that uses remote references at random until it must stop.
//!
//! It creates, passes on, drops and uses references. The tests run four of these workers and kill
//! some of them. Each worker reports violations.
//!
//! ```text
//! reference_worker HOST:PORT NAME RANK SEED
//! reference_worker HOST:PORT NAME RANK idle      makes no references itself
//! ```
//!
//! In the store, `operations` counts the operations, and `violations` describes errors. At `stop`
//! the worker drops everything. It appends a line to `reports` when nothing is left, or after a
//! time limit.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdzv_rpc::{
    CallContext, Method, Methods, RRef, ReferenceCounters, ReferenceSettings, RpcAgent, RpcError,
    RpcErrorKind, RpcFuture, RpcOptions, Timeout, ValueMethod,
};
use rdzv_store::Store as _;
use serde::{Deserialize, Serialize};

use crate::store_at;

const MAKE: Method<u64, Token> = Method::new("make");
const NUMBER_HERE: Method<u64, u64> = Method::new("number");
const KEEP_NUMBER: Method<RRef<u64>, ()> = Method::new("number.keep");
const KEEP: Method<(RRef<Token>, String, u64), ()> = Method::new("keep");
const NUMBER: ValueMethod<Token, (), u64> = ValueMethod::new("token.number");

/// Maximum number of references that a worker collects, and of its open calls.
const POOL: usize = 64;
const ON_THEIR_WAY: usize = 32;

/// Number of operations between two exchanges with the store.
const TURN: u64 = 256;

/// Time limit of a request for a value.
const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(20));

/// Time after the last drop by which nothing may be left.
/// Lost messages are requested again after 5 s.
const DRAINED: Duration = Duration::from_secs(90);

/// Number of tokens that exist in this process.
static LIVE: AtomicI64 = AtomicI64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);
static STOPPING: AtomicBool = AtomicBool::new(false);
static NUMBERS: Mutex<Vec<RRef<u64>>> = Mutex::new(Vec::new());
static HELD: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// A value behind references.
#[derive(Serialize, Deserialize)]
struct Token {
    owner: String,
    number: u64,
    #[serde(skip)]
    _counted: Counted,
}

/// Counter of live tokens, created and dropped with each token.
struct Counted(());

impl Default for Counted {
    fn default() -> Self {
        LIVE.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A reference, and the expected value behind it.
#[derive(Clone)]
struct Entry {
    reference: RRef<Token>,
    owner: String,
    number: u64,
}

fn held() -> MutexGuard<'static, Vec<Entry>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(entry: Entry) {
    let mut held = held();
    if STOPPING.load(Ordering::SeqCst) {
        return;
    }
    if held.len() < POOL {
        return held.push(entry);
    }
    let index = NEXT.load(Ordering::Relaxed) as usize % POOL;
    let former = std::mem::replace(&mut held[index], entry);
    drop(held);
    drop(former);
}

fn token(owner: &str, number: u64) -> Token {
    Token {
        owner: owner.to_owned(),
        number,
        _counted: Counted::default(),
    }
}

fn methods() -> Methods {
    Methods::new()
        .with(MAKE, async |context: CallContext, number: u64| {
            Ok::<_, RpcError>(token(context.agent().me().name.as_str(), number))
        })
        .with(NUMBER_HERE, async |number: u64| Ok::<_, RpcError>(number))
        .with(KEEP_NUMBER, async |reference: RRef<u64>| {
            let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.push(reference);
            Ok::<_, RpcError>(())
        })
        .with(
            KEEP,
            async |(reference, owner, number): (RRef<Token>, String, u64)| {
                keep(Entry {
                    reference,
                    owner,
                    number,
                });
                Ok::<_, RpcError>(())
            },
        )
        .with(NUMBER, async |token: Arc<Token>, ()| {
            Ok::<_, RpcError>(token.number)
        })
}

struct Worker {
    agent: RpcAgent,
    random: fastrand::Rng,
    calls: Vec<RpcFuture<()>>,
    violations: Vec<String>,
    errors: BTreeMap<String, u64>,
}

impl Worker {
    fn operate(&mut self) {
        let count = held().len();
        if count == 0 {
            return self.make();
        }
        let index = self.random.usize(0..count);
        let Some(entry) = held().get(index).cloned() else {
            return;
        };
        match self.random.u32(0..100) {
            0..25 => self.make(),
            25..55 => self.pass_on(&entry),
            55..80 => {
                let mut held = held();
                if index < held.len() {
                    let dropped = held.swap_remove(index);
                    drop(held);
                    drop(dropped);
                }
            }
            _ => self.ask(&entry),
        }
    }

    fn anybody(&mut self) -> String {
        let workers = self.agent.workers();
        let index = self.random.usize(0..workers.len());
        workers[index].name.to_string()
    }

    fn make(&mut self) {
        let me = self.agent.me().name.to_string();
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let (owner, made) = if self.random.bool() {
            let value = token(&me, number);
            (me, RRef::new(&self.agent, value))
        } else {
            let owner = self.anybody();
            let made = self.agent.remote(owner.as_str(), MAKE, &number);
            (owner, made)
        };
        match made {
            Ok(reference) => keep(Entry {
                reference,
                owner,
                number,
            }),
            Err(error) => self.failed("make", &error),
        }
    }

    fn pass_on(&mut self, entry: &Entry) {
        let to = self.anybody();
        let argument = (entry.reference.clone(), entry.owner.clone(), entry.number);
        self.calls
            .push(self.agent.call(to.as_str(), KEEP, &argument));
        if self.calls.len() >= ON_THEIR_WAY {
            self.finish();
        }
    }

    fn finish(&mut self) {
        for call in std::mem::take(&mut self.calls) {
            if let Err(error) = call.wait() {
                self.failed("pass", &error);
            }
        }
    }

    fn ask(&mut self, entry: &Entry) {
        let confirmed = entry.reference.confirmed_by_owner();
        let seen = if self.random.bool() {
            let token = entry.reference.to_here(TIMEOUT);
            token.map(|token| (token.owner.clone(), token.number))
        } else {
            let number = entry.reference.rpc_sync(NUMBER, &(), TIMEOUT);
            number.map(|number| (entry.owner.clone(), number))
        };
        match seen {
            Ok(seen) if seen == (entry.owner.clone(), entry.number) => {}
            Ok(seen) => self.violations.push(format!(
                "{} has {seen:?} instead of {:?}",
                entry.reference,
                (&entry.owner, entry.number)
            )),
            Err(error) => {
                if confirmed && error.message.contains("does not have") {
                    let text = format!("{} was freed early: {error}", entry.reference);
                    self.violations.push(text);
                }
                self.failed("ask", &error);
                held().retain(|other| other.owner != entry.owner || other.number != entry.number);
            }
        }
    }

    /// Records an error; only errors that follow from killed workers are allowed.
    fn failed(&mut self, what: &str, error: &RpcError) {
        use RpcErrorKind::{Cancelled, Deadline, PeerLost, UnknownWorker};
        if !matches!(error.kind, Cancelled | Deadline | PeerLost | UnknownWorker) {
            self.violations.push(format!("{what}: {error}"));
        }
        *self
            .errors
            .entry(format!("{what} {}", error.kind))
            .or_default() += 1;
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, name, rank, seed] = &arguments[..] else {
        return Err("usage: reference_worker HOST:PORT NAME RANK SEED".into());
    };
    let options = RpcOptions {
        references: ReferenceSettings {
            lost_after: Duration::from_secs(3),
            ask_after: Duration::from_secs(5),
            renew_after: Duration::from_secs(5),
            ..ReferenceSettings::default()
        },
        timeout: TIMEOUT,
        ..RpcOptions::default()
    };
    let rank = rank.parse()?;
    let builder = RpcAgent::builder(name).rank(rank);
    let builder = builder.store(Arc::new(store_at(endpoint)?));
    let agent = builder.methods(methods()).options(options).connect()?;
    let store = store_at(endpoint)?;
    store.add("joined", 1)?;
    if seed == "idle" {
        store.wait(&["bye"], Some(Duration::from_secs(120)))?;
        return Ok(agent.shutdown(Duration::from_secs(10))?);
    }
    let mut worker = Worker {
        agent: agent.clone(),
        random: fastrand::Rng::with_seed(seed.parse()?),
        calls: Vec::new(),
        violations: Vec::new(),
        errors: BTreeMap::new(),
    };
    while !store.check(&["stop"])? {
        for _ in 0..TURN {
            worker.operate();
        }
        store.add("operations", TURN as i64)?;
        for violation in worker.violations.drain(..) {
            store.append("violations", format!("{name}: {violation}\n").as_bytes())?;
        }
    }
    worker.finish();
    STOPPING.store(true, Ordering::SeqCst);
    let dropped = std::mem::take(&mut *held());
    drop(dropped);
    let deadline = Instant::now() + DRAINED;
    // A reference may be in flight to this worker while other workers are running.
    let is_empty =
        || agent.references() == ReferenceCounters::default() && LIVE.load(Ordering::SeqCst) == 0;
    let mut empty_since = None;
    while Instant::now() < deadline {
        match empty_since {
            _ if !is_empty() => empty_since = None,
            None => empty_since = Some(Instant::now()),
            Some(since) if since.elapsed() > Duration::from_secs(8) => break,
            Some(_) => {}
        }
        // The tables are polled, because no event reports when they are empty.
        std::thread::sleep(Duration::from_millis(20));
    }
    let result = if is_empty() {
        "empty".to_owned()
    } else {
        format!(
            "left {:?}, {} tokens",
            agent.references(),
            LIVE.load(Ordering::SeqCst)
        )
    };
    let errors = &worker.errors;
    store.append(
        "reports",
        format!("{name}: {result}; {errors:?}\n").as_bytes(),
    )?;
    store.wait(&["bye"], Some(Duration::from_secs(120)))?;
    agent.shutdown(Duration::from_secs(10))?;
    Ok(())
}
