//! Leases, with which etcd deletes the entries of nodes that have ended.
//!
//! A separate thread renews the leases. It shares nothing with user code, waits only for its clock
//! and the server, and ends with the [`Leases`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_lock::{Condvar, Mutex};

use super::failure::Failure;
use super::http::Client;
use super::v3::is_no_lease;
use super::wire::write;
use crate::RendezvousError;
use crate::runtime::{Call, beside};

/// Longest time for which entries outlive their last writer.
const LASTING: Duration = Duration::from_secs(7200);

/// Time limit to revoke a lease when its owner ends or leaves.
///
/// If the revocation fails, the lease expires.
const FAREWELL: Duration = Duration::from_secs(1);

/// Value under the key of a member that has left; the value is empty otherwise.
pub(super) const LEFT: &[u8] = b"left";

/// Number of attempts of a request whose lease has expired.
const LEASE_ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(crate) struct Leases {
    shared: Arc<Shared>,
    /// Client for requests other than renewals.
    client: Client,
    renewals: Option<Call>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    member_life: Duration,
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    ended: bool,
    lasting: Option<i64>,
    lasting_renewed: Option<Instant>,
    member: Option<Member>,
    /// Last member key of this node, even if it no longer exists.
    own_key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    key: String,
    lease: i64,
}

impl Leases {
    /// Starts the thread that renews leases; there is no lease yet.
    ///
    /// A member is lost after `member_life` without a renewal.
    pub(crate) fn new(client: Client, member_life: Duration) -> Result<Self, RendezvousError> {
        let renewal = member_life / 4;
        let shared = Arc::new(Shared {
            client: client.with_limit(renewal),
            member_life,
            wanted: Mutex::default(),
            changed: Condvar::new(),
        });
        let renewing = Arc::clone(&shared);
        let renewals = beside(move || renewing.keep_renewing(renewal)).map_err(|error| {
            RendezvousError::Argument(format!(
                "cannot start a thread that renews etcd leases: {error}"
            ))
        })?;
        Ok(Self {
            shared,
            client,
            renewals: Some(renewals),
        })
    }

    /// Runs `act`, a request about `key`, with a lease that outlives this node.
    pub(crate) fn with_lasting<T>(
        &self,
        key: &[u8],
        mut act: impl FnMut(i64) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        with_living_lease(|| {
            let lease = self.lasting(key)?;
            act(lease).inspect_err(|failure| {
                if is_no_lease(failure) {
                    self.shared.forget(lease);
                }
            })
        })
    }

    /// Announces this node under `key`, and retracts a previous announcement.
    ///
    /// If `key` is announced already, this does nothing.
    pub(crate) fn announce(&self, key: &str) -> Result<(), Failure> {
        let known = self.shared.wanted.lock().member.clone();
        if known.is_some_and(|known| known.key == key) {
            return Ok(());
        }
        self.retract();
        let member = create(&self.client, key, self.shared.member_life)?;
        let mut wanted = self.shared.wanted.lock();
        wanted.own_key = Some(key.to_owned());
        wanted.member = Some(member);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Retracts the announcement of a node that has left according to the state.
    ///
    /// The others receive no notice of its end, because the node may join again before the notice
    /// arrives.
    pub(crate) fn retract(&self) {
        self.end_member(|client, member| {
            let left = [write(member.key.as_bytes(), LEFT, member.lease)];
            client.transact("leave as", member.key.as_bytes(), &[], &left, &[])?;
            client.revoke(member.lease)
        });
    }

    /// Ends the announcement of this node, so that the others receive a notice.
    pub(crate) fn end(&self) {
        self.end_member(|client, member| client.revoke(member.lease));
    }

    fn end_member(&self, end: impl FnOnce(&Client, &Member) -> Result<(), Failure>) {
        let Some(member) = self.shared.wanted.lock().member.take() else {
            return;
        };
        if let Err(failure) = end(&self.client.with_limit(FAREWELL), &member) {
            tracing::debug!(%failure, "the lease of this node will expire later");
        }
    }

    /// `true` if `key` is the last one under which this node announced itself.
    pub(crate) fn is_own(&self, key: &[u8]) -> bool {
        let wanted = self.shared.wanted.lock();
        let own = wanted.own_key.as_deref();
        own.is_some_and(|own| own.as_bytes() == key)
    }

    fn lasting(&self, key: &[u8]) -> Result<i64, Failure> {
        if let Some(lease) = self.shared.wanted.lock().lasting {
            return Ok(lease);
        }
        let lease = self.client.grant(LASTING, key)?;
        let mut wanted = self.shared.wanted.lock();
        // If another thread was faster, its lease is renewed; this one expires unused.
        if wanted.lasting.is_none() {
            wanted.lasting_renewed = Some(Instant::now());
        }
        Ok(*wanted.lasting.get_or_insert(lease))
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.shared.wanted.lock().ended = true;
        self.shared.changed.notify_all();
        self.shared.client.close();
        if let Some(renewals) = self.renewals.take() {
            renewals.join();
        }
        self.end();
    }
}

/// Sends a request, and repeats it if its lease has expired.
///
/// This node may have been cut off for longer than the lease lives.
fn with_living_lease<T>(mut request: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for _ in 1..LEASE_ATTEMPTS {
        match request() {
            Err(failure) if is_no_lease(&failure) => {}
            other => return other,
        }
    }
    request()
}

/// Creates a member key with a separate lease.
fn create(client: &Client, key: &str, life: Duration) -> Result<Member, Failure> {
    let name = key.as_bytes();
    let lease = with_living_lease(|| {
        let lease = client.grant(life, name)?;
        let put = [write(name, b"", lease)];
        client.transact("announce this node as", name, &[], &put, &[])?;
        Ok(lease)
    })?;
    Ok(Member {
        key: key.to_owned(),
        lease,
    })
}

impl Shared {
    fn forget(&self, lease: i64) {
        let mut wanted = self.wanted.lock();
        if wanted.lasting == Some(lease) {
            wanted.lasting = None;
        }
    }

    fn keep_renewing(&self, renewal: Duration) {
        loop {
            let wanted = self.wanted.lock();
            // An announcement wakes this thread, so a long wait without a member is safe.
            let pause = match &wanted.member {
                Some(_) => renewal,
                None => LASTING / 4,
            };
            let idle = wanted.member.clone();
            let (wanted, _) = self
                .changed
                .wait_timeout_while(wanted, pause, |now| !now.ended && now.member == idle);
            if wanted.ended {
                return;
            }
            let member = wanted.member.clone();
            let due = wanted
                .lasting_renewed
                .is_some_and(|renewed| renewed.elapsed() >= LASTING / 4);
            let lasting = wanted.lasting.filter(|_| due);
            drop(wanted);
            if let Some(member) = member {
                self.renew_member(&member);
            }
            if let Some(lease) = lasting {
                self.renew_lasting(lease);
            }
        }
    }

    fn renew_member(&self, member: &Member) {
        let renewed = match self.client.keep_alive(member.lease) {
            Ok(true) => return,
            Ok(false) => {
                tracing::warn!(
                    key = member.key,
                    "etcd removed this node, because its lease was not renewed in time; announcing \
                     the node again"
                );
                create(&self.client, &member.key, self.member_life)
            }
            Err(failure) => Err(failure),
        };
        match renewed {
            Ok(again) => {
                let mut wanted = self.wanted.lock();
                if wanted.member.as_ref() == Some(member) {
                    wanted.member = Some(again);
                    return;
                }
                drop(wanted);
                let _ = self.client.revoke(again.lease);
            }
            // The next iteration tries again; leases do not expire while etcd is away.
            Err(failure) => tracing::debug!(%failure, "cannot renew the lease of this node"),
        }
    }

    fn renew_lasting(&self, lease: i64) {
        match self.client.keep_alive(lease) {
            Ok(true) => self.wanted.lock().lasting_renewed = Some(Instant::now()),
            Ok(false) => self.forget(lease),
            Err(failure) => tracing::debug!(%failure, "cannot renew a lease"),
        }
    }
}
