//! Leases: what a node has in etcd lasts as long as the node does.
//!
//! One call beside the runtime renews them. It shares nothing with user code, waits for nothing but
//! its clock and the server, and ends with the [`Leases`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_lock::{Condvar, Mutex};

use super::failure::Failure;
use super::http::Client;
use super::v3::is_no_lease;
use super::wire::write;
use crate::RendezvousError;
use crate::runtime::{Call, beside};

/// For how long things outlive the one who wrote them last.
const LASTING: Duration = Duration::from_secs(7200);

/// How long ending a lease is tried when the owner goes. If that fails, it runs out.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is under the key of a member that has left; otherwise nothing is.
pub(super) const LEFT: &[u8] = b"left";

/// How often a request is repeated because its lease has vanished in the meantime.
const LEASE_ATTEMPTS: usize = 3;

/// The leases of one node.
#[derive(Debug)]
pub(crate) struct Leases {
    shared: Arc<Shared>,
    /// For the requests of whoever calls.
    client: Client,
    renewals: Option<Call>,
}

#[derive(Debug)]
struct Shared {
    /// For the renewals.
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
    /// The last member key that was ours, also when it is no more.
    own_key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    key: String,
    lease: i64,
}

impl Leases {
    /// No lease yet, but the call that will renew them. A member is gone when it has not been
    /// heard of for `member_life`.
    pub(crate) fn new(client: Client, member_life: Duration) -> Result<Self, RendezvousError> {
        let renewal = member_life / 4;
        let shared = Arc::new(Shared {
            client: client.with_limit(renewal),
            member_life,
            wanted: Mutex::default(),
            changed: Condvar::new(),
        });
        let renewing = Arc::clone(&shared);
        let renewals = beside(move || renewing.renew_until_the_end(renewal)).map_err(|error| {
            RendezvousError::Argument(format!("no thread to renew etcd leases with: {error}"))
        })?;
        Ok(Self {
            shared,
            client,
            renewals: Some(renewals),
        })
    }

    /// Carries `act`, which is about `key`, out with the lease of what may outlive this node.
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

    /// Announces this node, if that has not been done, in place of whom was announced before.
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

    /// Takes the announcement back: this node has left, and has said so in the state. Nobody is told
    /// of its end, because it may be back before that is heard.
    pub(crate) fn retract(&self) {
        self.end_member(|client, member| {
            let left = [write(member.key.as_bytes(), LEFT, member.lease)];
            client.transact("leave as", member.key.as_bytes(), &[], &left, &[])?;
            client.revoke(member.lease)
        });
    }

    /// This node ends, whatever the state says of it; the others are told.
    pub(crate) fn end(&self) {
        self.end_member(|client, member| client.revoke(member.lease));
    }

    fn end_member(&self, end: impl FnOnce(&Client, &Member) -> Result<(), Failure>) {
        let Some(member) = self.shared.wanted.lock().member.take() else {
            return;
        };
        if let Err(failure) = end(&self.client.with_limit(FAREWELL), &member) {
            tracing::debug!(%failure, "the lease of this node will run out by itself");
        }
    }

    /// Whether a key is the one that this node announces or has announced.
    pub(crate) fn is_own(&self, key: &[u8]) -> bool {
        let wanted = self.shared.wanted.lock();
        let own = wanted.own_key.as_deref();
        own.is_some_and(|own| own.as_bytes() == key)
    }

    fn lasting(&self, key: &[u8]) -> Result<i64, Failure> {
        if let Some(lease) = self.shared.wanted.lock().lasting {
            return Ok(lease);
        }
        // Two threads may both come here; then one lease is renewed in vain.
        let lease = self.client.grant(LASTING, key)?;
        let mut wanted = self.shared.wanted.lock();
        wanted.lasting_renewed = Some(Instant::now());
        Ok(*wanted.lasting.insert(lease))
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

/// Makes a request, again if its lease has vanished in the meantime: the server may have been away
/// for longer than the lease lives.
fn with_living_lease<T>(mut request: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for _ in 1..LEASE_ATTEMPTS {
        match request() {
            Err(failure) if is_no_lease(&failure) => {}
            other => return other,
        }
    }
    request()
}

/// A member key with a lease of its own.
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

    fn renew_until_the_end(&self, renewal: Duration) {
        loop {
            let wanted = self.wanted.lock();
            // An announcement wakes this call, so that it may wait long without one.
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
                    "etcd has taken this node for dead, because its lease was not renewed in time; \
                     announcing it again"
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
            // The next turn tries again; leases do not run out while etcd is away.
            Err(failure) => tracing::debug!(%failure, "the lease of this node was not renewed"),
        }
    }

    fn renew_lasting(&self, lease: i64) {
        match self.client.keep_alive(lease) {
            Ok(true) => self.wanted.lock().lasting_renewed = Some(Instant::now()),
            Ok(false) => self.forget(lease),
            Err(failure) => tracing::debug!(%failure, "a lease was not renewed"),
        }
    }
}
