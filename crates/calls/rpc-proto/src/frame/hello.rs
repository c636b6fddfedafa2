//! First messages between two workers, and the reasons to refuse a peer.
//!
//! ```text
//!  connector                                 acceptor
//!      ── Hello { …, nonce } ────────────────►
//!      ◄──────────────── Hello { …, nonce } ──
//!      ◄───────────────── Accepted { proof } ──   only if the hello is right
//!      ── Accepted { proof } ────────────────►   and from here on requests
//! ```
//!
//! An acceptor that refuses the connector sends [`FrameKind::GoAway`](super::FrameKind::GoAway)
//! with the reason. A connector that refuses the acceptor closes the connection.
//!
//! The token of a job is never sent. A proof is a keyed hash of the prover's role and of all bytes
//! in both hellos. It is therefore useless on another connection or in the other direction, and an
//! attacker between the workers cannot change a hello. The driver computes the hash.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::worker::WorkerInfo;

/// Version of the protocol.
///
/// In every version, the first two bytes of a hello contain its version number.
pub const PROTOCOL: u16 = 1;

/// Number of random bytes from each side.
pub const NONCE_LENGTH: usize = 32;

/// Identification of a worker: the body of the first frame in each direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol that the worker speaks.
    #[serde(skip, default = "this_protocol")]
    pub version: u16,
    /// Bit set of optional features.
    pub features: u64,
    /// Name and id of the worker.
    pub worker: WorkerInfo,
    /// Epoch of the worker's group; 0 for a dynamic group.
    pub group: u64,
    /// Random number that distinguishes this run of the worker from earlier runs.
    pub incarnation: u64,
    /// Boot id of the host, equal for all workers on one host; empty if unknown.
    pub host: String,
    /// Process id of the worker in its PID namespace.
    pub process: u32,
    /// `true` if the worker requires proof that the peer knows the job's token.
    pub wants_proof: bool,
    /// Random bytes that the proof covers.
    pub nonce: [u8; NONCE_LENGTH],
}

/// Body of an [`Accepted`](super::FrameKind::Accepted) frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Accepted {
    /// Keyed hash over both hellos; `None` if the job has no token.
    pub proof: Option<[u8; 32]>,
}

fn this_protocol() -> u16 {
    PROTOCOL
}

/// Reason for refusing a peer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HelloError {
    /// The bytes are not a valid hello or proof.
    #[error("the peer's handshake is not valid in version {PROTOCOL} of the RPC protocol")]
    Unreadable,
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer uses version {theirs} of the RPC protocol, but this worker uses version {ours}: \
         run the same version of rdzv on all workers"
    )]
    Version {
        /// Version that this worker speaks.
        ours: u16,
        /// Version that the peer speaks.
        theirs: u16,
    },
    /// The peer is in another epoch of the group.
    #[error(
        "{peer} is in epoch {theirs} of the group, but {us} is in epoch {ours}: one of them \
         belongs to an earlier group or to another job"
    )]
    Group {
        /// This worker.
        us: WorkerInfo,
        /// Worker that the peer claims to be.
        peer: WorkerInfo,
        /// Epoch of this worker.
        ours: u64,
        /// Epoch of the peer.
        theirs: u64,
    },
    /// A different worker listens at the address.
    #[error("{found} answered at the address of {expected}: the address is out of date")]
    Worker {
        /// Worker that was expected.
        expected: WorkerInfo,
        /// Worker that replied.
        found: WorkerInfo,
    },
    /// The peer is this worker itself.
    #[error("{0} connected to itself: another worker published its address")]
    Itself(WorkerInfo),
    /// Only one of the two workers has a token.
    #[error(
        "{with} has a job token, but {without} has none: give the same token to all workers or to \
         none"
    )]
    TokenMissing {
        /// Worker with a token.
        with: WorkerInfo,
        /// Worker without a token.
        without: WorkerInfo,
    },
    /// The proof is wrong or missing.
    #[error(
        "{peer} and {us} have different job tokens: give the same token to all workers of the job"
    )]
    Token {
        /// This worker.
        us: WorkerInfo,
        /// Worker that the peer claims to be.
        peer: WorkerInfo,
    },
}

impl Hello {
    /// Encodes the hello as the body of a frame.
    ///
    /// # Panics
    ///
    /// Never: all fields can be serialised.
    pub fn to_bytes(&self) -> Vec<u8> {
        let start = self.version.to_le_bytes().to_vec();
        postcard::to_extend(self, start).expect("a hello holds numbers and texts only")
    }

    /// Decodes a hello from the body of a frame.
    ///
    /// # Errors
    ///
    /// [`HelloError::Version`] if the peer speaks another version, [`HelloError::Unreadable`] if
    /// the bytes are not a valid hello.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HelloError> {
        let (version, rest) = bytes.split_first_chunk().ok_or(HelloError::Unreadable)?;
        let theirs = u16::from_le_bytes(*version);
        if theirs != PROTOCOL {
            let ours = PROTOCOL;
            return Err(HelloError::Version { ours, theirs });
        }
        read(rest)
    }

    /// Checks that this worker may communicate with the peer, in any group.
    ///
    /// # Errors
    ///
    /// [`HelloError::Itself`] if the peer is this worker, [`HelloError::TokenMissing`] if only one
    /// of the two has a token.
    pub fn check_peer(&self, peer: &Self) -> Result<(), HelloError> {
        if self.incarnation == peer.incarnation && self.worker == peer.worker {
            return Err(HelloError::Itself(self.worker.clone()));
        }
        let (with, without) = match (self.wants_proof, peer.wants_proof) {
            (true, false) => (self, peer),
            (false, true) => (peer, self),
            _ => return Ok(()),
        };
        Err(HelloError::TokenMissing {
            with: with.worker.clone(),
            without: without.worker.clone(),
        })
    }

    /// Checks that the peer is in the same epoch of the group.
    ///
    /// # Errors
    ///
    /// [`HelloError::Group`] if the epochs differ.
    pub fn check_group(&self, peer: &Self) -> Result<(), HelloError> {
        if self.group == peer.group {
            return Ok(());
        }
        Err(HelloError::Group {
            us: self.worker.clone(),
            peer: peer.worker.clone(),
            ours: self.group,
            theirs: peer.group,
        })
    }

    /// Checks that the peer that sent this hello is the `expected` worker.
    ///
    /// # Errors
    ///
    /// [`HelloError::Worker`] if another worker sent it.
    pub fn check_worker(&self, expected: &WorkerInfo) -> Result<(), HelloError> {
        if self.worker == *expected {
            return Ok(());
        }
        Err(HelloError::Worker {
            expected: expected.clone(),
            found: self.worker.clone(),
        })
    }

    /// Returns the error for a peer whose proof is wrong or missing.
    pub fn wrong_token(&self, peer: &Self) -> HelloError {
        HelloError::Token {
            us: self.worker.clone(),
            peer: peer.worker.clone(),
        }
    }
}

impl Accepted {
    /// Encodes the proof as the body of a frame.
    ///
    /// # Panics
    ///
    /// Never: all fields can be serialised.
    pub fn to_bytes(self) -> Vec<u8> {
        postcard::to_extend(&self, Vec::new()).expect("the body holds bytes only")
    }

    /// Decodes a proof from the body of a frame.
    ///
    /// # Errors
    ///
    /// [`HelloError::Unreadable`] if the bytes are not a valid proof.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HelloError> {
        read(bytes)
    }
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, HelloError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(HelloError::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::FrameLimits;
    use super::*;
    use crate::worker::{WorkerId, WorkerName};

    fn hello(id: u32) -> Hello {
        Hello {
            version: PROTOCOL,
            features: 0b1100 | u64::from(id),
            worker: WorkerInfo {
                id: WorkerId(id),
                name: WorkerName::new(format!("w{id}")).unwrap(),
            },
            group: 7,
            incarnation: 1 << 60 | u64::from(id),
            host: "49f0a3ee-9e5b-4a8d-8f04-6d4b7e31b0a5".to_owned(),
            process: 4_000_000,
            wants_proof: true,
            nonce: [id as u8; NONCE_LENGTH],
        }
    }

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        let bytes = hello(3).to_bytes();
        assert_eq!(bytes[..2], [1, 0]);
        assert_eq!(Hello::from_bytes(&bytes), Ok(hello(3)));
        for proof in [None, Some([5; 32])] {
            let accepted = Accepted { proof };
            assert_eq!(Accepted::from_bytes(&accepted.to_bytes()), Ok(accepted));
        }
    }

    #[test]
    fn the_longest_hello_is_within_the_limits_for_unauthenticated_peers() {
        let mut longest = hello(u32::MAX);
        longest.worker.name = WorkerName::new("x".repeat(127)).unwrap();
        longest.host = "h".repeat(1024);
        assert_eq!(
            FrameLimits::UNAUTHENTICATED.check(longest.to_bytes().len(), &[]),
            Ok(())
        );
    }

    #[test]
    fn a_hello_that_is_cut_or_too_long_is_refused() {
        let mut bytes = hello(3).to_bytes();
        for length in 0..bytes.len() {
            let cut = Hello::from_bytes(&bytes[..length]);
            assert_eq!(cut, Err(HelloError::Unreadable), "{length}");
        }
        bytes.push(0);
        assert_eq!(Hello::from_bytes(&bytes), Err(HelloError::Unreadable));
    }

    #[test]
    fn a_name_that_no_worker_can_have_is_refused() {
        let bytes = hello(3).to_bytes();
        let at = bytes.windows(2).position(|pair| pair == b"w3").unwrap();
        let mut changed = bytes;
        changed[at] = b'/';
        assert_eq!(Hello::from_bytes(&changed), Err(HelloError::Unreadable));
    }

    #[test]
    fn another_version_is_named_even_if_the_rest_cannot_be_read() {
        let error = Hello::from_bytes(&[2, 1, 0xff]).unwrap_err();
        let (ours, theirs) = (1, 0x0102);
        assert_eq!(error, HelloError::Version { ours, theirs });
        assert!(
            error
                .to_string()
                .contains("version 258 of the RPC protocol, but this worker uses version 1")
        );
    }

    /// Changes the hello of the peer of `w0`; returns the refusal or `welcome`.
    fn refusal(change: impl FnOnce(&mut Hello)) -> String {
        let (ours, mut theirs) = (hello(0), hello(1));
        change(&mut theirs);
        let checked = ours.check_peer(&theirs);
        let checked = checked.and_then(|()| ours.check_group(&theirs));
        let checked = checked.and_then(|()| theirs.check_worker(&hello(1).worker));
        checked.map_or_else(|error| error.to_string(), |()| "welcome".to_owned())
    }

    #[test]
    fn what_does_not_fit_names_both_sides() {
        assert_eq!(refusal(|_| {}), "welcome");
        assert_eq!(
            refusal(|peer| peer.group = 8),
            "WorkerInfo(id=1, name=w1) is in epoch 8 of the group, but WorkerInfo(id=0, name=w0) \
             is in epoch 7: one of them belongs to an earlier group or to another job"
        );
        assert_eq!(
            refusal(|peer| peer.worker = hello(2).worker),
            "WorkerInfo(id=2, name=w2) answered at the address of WorkerInfo(id=1, name=w1): the \
             address is out of date"
        );
        assert_eq!(
            refusal(|peer| peer.wants_proof = false),
            "WorkerInfo(id=0, name=w0) has a job token, but WorkerInfo(id=1, name=w1) has none: \
             give the same token to all workers or to none"
        );
        assert_eq!(
            refusal(|peer| *peer = hello(0)),
            "WorkerInfo(id=0, name=w0) connected to itself: another worker published its address"
        );
        assert_eq!(
            hello(0).wrong_token(&hello(1)).to_string(),
            "WorkerInfo(id=1, name=w1) and WorkerInfo(id=0, name=w0) have different job tokens: \
             give the same token to all workers of the job"
        );
    }

    #[test]
    fn a_token_on_either_side_only_is_noticed_by_both() {
        let (with, mut without) = (hello(0), hello(1));
        without.wants_proof = false;
        assert_eq!(with.check_peer(&without), without.check_peer(&with));
        assert!(with.check_peer(&without).is_err());
    }
}
