//! A dynamic group, as seen by one of its members.
//!
//! One thread waits for the next version of the member list. Another thread increments this
//! member's number and checks those of others (`beats`). The threads do not affect correctness:
//! each change of the list is a compare-and-set, so the first writer of a version decides.

mod beats;
mod join;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rdzv_lock::{Condvar, Mutex, RwLock};
use rdzv_rpc_proto::directory::{GroupView, Member};
use rdzv_rpc_proto::worker::WorkerInfo;
use rdzv_store::{Breaker, Store, StoreError};

use super::access::{change, peek, remove};
use super::failure::store_failed;
use super::keys::Keys;
use super::limit::Limit;
use super::{GroupChange, OnChange, SHORTEST_LEASE};
use crate::RpcError;

/// Number of beats, and of polls of other members, in one lease.
const BEATS_IN_A_LEASE: u32 = 16;

/// Membership in a dynamic group.
///
/// A drop ends the threads without notifying the other members, which notice the expired lease.
pub(super) struct DynamicGroup {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    /// Group directly after this member joined it.
    joined: Arc<GroupView>,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    watch: JoinHandle<()>,
    beats: JoinHandle<()>,
    /// Ends the wait of the watching thread, if the store supports that.
    breaker: Option<Breaker>,
}

/// State shared by the threads of a membership.
struct Shared {
    keys: Keys,
    incarnation: u64,
    lease: Duration,
    view: RwLock<Arc<GroupView>>,
    listeners: Mutex<Vec<Box<OnChange>>>,
    state: Mutex<State>,
    /// Wakes the thread that renews the lease.
    ending: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// `true` if this member is leaving or was dropped.
    is_ending: bool,
    /// Reason why reports have ended.
    detached: Option<RpcError>,
}

impl fmt::Debug for DynamicGroup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DynamicGroup")
            .field("view", &self.view())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn view(&self) -> Arc<GroupView> {
        Arc::clone(&self.view.read())
    }

    fn beat(&self) -> Duration {
        self.lease / BEATS_IN_A_LEASE
    }

    /// Makes a newer view the current one, and notifies the listeners.
    fn show(&self, view: GroupView) {
        let listeners = self.listeners.lock();
        {
            let mut current = self.view.write();
            if view.epoch() <= current.epoch() {
                return;
            }
            *current = Arc::new(view);
        }
        let change = GroupChange::View(self.view());
        listeners.iter().for_each(|listener| listener(&change));
    }

    /// Notifies the listeners once that reports end, unless this member is leaving.
    fn detach(&self, error: RpcError) {
        let listeners = self.listeners.lock();
        {
            let mut state = self.state.lock();
            if state.is_ending || state.detached.is_some() {
                return;
            }
            state.detached = Some(error.clone());
        }
        self.ending.notify_all();
        let change = GroupChange::Detached(error);
        listeners.iter().for_each(|listener| listener(&change));
    }

    /// Marks this member as ending; `false` if it was already marked.
    fn end(&self) -> bool {
        let was_ending = std::mem::replace(&mut self.state.lock().is_ending, true);
        self.ending.notify_all();
        !was_ending
    }

    /// `true` if the threads have nothing left to do.
    fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_ending || state.detached.is_some()
    }
}

impl DynamicGroup {
    pub(super) fn join(
        store: Arc<dyn Store>,
        me: Member,
        lease: Duration,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        if lease < SHORTEST_LEASE {
            let message = format!("the lease must be at least {SHORTEST_LEASE:?}, got {lease:?}");
            return Err(RpcError::invalid(message));
        }
        // The connections come first: a worker that cannot renew its lease must not join.
        let connect = || {
            let clone = store.try_clone();
            clone.map_err(|error| store_failed("connect to the store of the group", &error))
        };
        let (for_watch, for_beats) = (connect()?, connect()?);
        let (keys, view) = join::join(&*store, &me, lease, deadline)?;
        let joined = Arc::new(view);
        let shared = Arc::new(Shared {
            keys,
            incarnation: me.incarnation,
            lease,
            view: RwLock::new(Arc::clone(&joined)),
            listeners: Mutex::default(),
            state: Mutex::default(),
            ending: Condvar::new(),
        });
        let group = Self {
            shared: Arc::clone(&shared),
            store,
            joined,
            threads: Mutex::new(None),
        };
        let breaker = for_watch.connection().and_then(|it| it.breaker());
        let spawned = |thread: std::io::Result<JoinHandle<()>>| {
            thread.map_err(|error| {
                // The thread that exists ends with the group, which is dropped now.
                let _ = group.leave();
                RpcError::internal("cannot start a thread for the RPC group")(error)
            })
        };
        let beats = {
            let shared = Arc::clone(&shared);
            let named = std::thread::Builder::new().name("rdzv-rpc-lease".to_owned());
            spawned(named.spawn(move || beats::run(&shared, &*for_beats)))?
        };
        let named = std::thread::Builder::new().name("rdzv-rpc-group".to_owned());
        let watch = spawned(named.spawn(move || watch::run(&shared, &*for_watch)))?;
        *group.threads.lock() = Some(Threads {
            watch,
            beats,
            breaker,
        });
        Ok(group)
    }

    /// Waits until each live member that joined earlier knows this one.
    ///
    /// Members that joined later know it from the list. A member that dies is no longer awaited
    /// when its lease is over.
    pub(super) fn await_confirmation(&self, deadline: Duration) -> Result<(), RpcError> {
        let (limit, shared) = (Limit::of(deadline), &self.shared);
        let elders = self.joined.members();
        let mut elders = elders.filter(|elder| elder.incarnation != shared.incarnation);
        let stays = |elder: &Member| {
            let view = self.view();
            let now = view.with_id(elder.info.id);
            now.is_some_and(|now| now.incarnation == elder.incarnation)
        };
        let key = |elder: &Member| shared.keys.known(shared.incarnation, elder.incarnation);
        while let Some(elder) = elders.next() {
            loop {
                let slice = shared.beat().min(limit.left());
                match self.store.wait(&[&key(elder)], Some(slice)) {
                    Ok(()) => break,
                    Err(StoreError::WaitTimeout { .. }) => {}
                    Err(error) => {
                        return Err(store_failed(
                            "wait for the members of the RPC group",
                            &error,
                        ));
                    }
                }
                if let Some(error) = shared.state.lock().detached.clone() {
                    return Err(error);
                }
                if !stays(elder) {
                    break;
                }
                if limit.is_over() {
                    let mut silent: Vec<WorkerInfo> = vec![elder.info.clone()];
                    for other in elders.filter(|other| stays(other)) {
                        if peek(&*self.store, &key(other))?.is_none() {
                            silent.push(other.info.clone());
                        }
                    }
                    return Err(RpcError::late(&silent, |names| {
                        format!(
                            "cannot join the RPC group: no confirmation within {:.1} s \
                             (init_deadline) from {names}",
                            limit.elapsed().as_secs_f64()
                        )
                    }));
                }
            }
            remove(&*self.store, &key(elder))?;
        }
        Ok(())
    }

    pub(super) fn view(&self) -> Arc<GroupView> {
        self.shared.view()
    }

    pub(super) fn on_change(&self, listener: Box<OnChange>) {
        let mut listeners = self.shared.listeners.lock();
        listener(&GroupChange::View(self.view()));
        let detached = self.shared.state.lock().detached.clone();
        if let Some(error) = detached {
            listener(&GroupChange::Detached(error));
        }
        listeners.push(listener);
    }

    pub(super) fn leave(&self) -> Result<(), RpcError> {
        if !self.shared.end() {
            return Ok(());
        }
        // The lease thread ends first, because it would write the number again. Then the number is
        // removed, then the name: if this worker dies in between, its lease expires.
        let Some(threads) = self.take_threads() else {
            return self.say_good_bye();
        };
        join_thread(threads.beats);
        let said = self.say_good_bye();
        // The departure of this member wakes the other thread. If the departure could not be
        // written, the breaker wakes the thread.
        match (&said, &threads.breaker) {
            (Ok(()), _) => join_thread(threads.watch),
            (Err(_), Some(breaker)) => {
                breaker();
                join_thread(threads.watch);
            }
            (Err(_), None) => {}
        }
        said
    }

    /// Removes and returns the threads, to wait for them.
    ///
    /// Returns `None` also if one of the threads calls this, because a listener may end the group.
    /// In that case the threads end without a wait.
    fn take_threads(&self) -> Option<Threads> {
        let me = std::thread::current().id();
        let threads = self.threads.lock().take();
        threads.filter(|all| all.watch.thread().id() != me && all.beats.thread().id() != me)
    }

    fn say_good_bye(&self) -> Result<(), RpcError> {
        let Shared {
            keys, incarnation, ..
        } = *self.shared;
        remove(&*self.store, &keys.beat(incarnation))?;
        change(&*self.store, keys, |record| record.leave(incarnation))?;
        Ok(())
    }
}

impl Drop for DynamicGroup {
    fn drop(&mut self) {
        self.shared.end();
        let Some(threads) = self.take_threads() else {
            return;
        };
        join_thread(threads.beats);
        // Without a breaker, the other thread ends at the next change or at the end of a lease.
        if let Some(breaker) = threads.breaker {
            breaker();
            join_thread(threads.watch);
        }
    }
}

fn join_thread(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of an RPC group panicked");
    }
}
