//! The first frames of a connection, which identify the peer and its job.

use std::time::Instant;

use rdzv_rpc_proto::frame::hello::{Accepted, Hello, HelloError};
use rdzv_rpc_proto::frame::{Frame, FrameKind};
use rdzv_rpc_proto::worker::WorkerInfo;
use rdzv_trust::token::HandshakeRole;

use crate::error::{RpcError, RpcErrorKind};
use crate::transport::{PeerCredentials, Token};

pub(crate) struct Greeting {
    role: HandshakeRole,
    ours: Hello,
    token: Option<Token>,
    /// Worker that should answer; used by the side that connects.
    expected: Option<WorkerInfo>,
    /// Credentials that the peer has shown before; used by the side that listens.
    credentials: PeerCredentials,
    theirs: Option<(Hello, Vec<u8>)>,
    deadline: Instant,
}

/// Answer to a frame of the greeting, and the peer once it is known.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) answers: Vec<(FrameKind, Vec<u8>)>,
    pub(crate) peer: Option<Hello>,
}

impl Greeting {
    /// Creates the listening side; the peer must identify itself in time.
    pub(crate) fn acceptor(
        ours: Hello,
        token: Option<Token>,
        credentials: PeerCredentials,
        deadline: Instant,
    ) -> Self {
        Self {
            role: HandshakeRole::Acceptor,
            ours,
            token,
            expected: None,
            credentials,
            theirs: None,
            deadline,
        }
    }

    /// Creates the connecting side. Also returns the body of its first frame.
    pub(crate) fn connector(
        ours: Hello,
        token: Option<Token>,
        expected: WorkerInfo,
        deadline: Instant,
    ) -> (Self, Vec<u8>) {
        let hello = ours.to_bytes();
        let greeting = Self {
            role: HandshakeRole::Connector,
            expected: Some(expected),
            // The caller has already compared the credentials with the expected worker.
            ..Self::acceptor(ours, token, PeerCredentials::default(), deadline)
        };
        (greeting, hello)
    }

    /// Returns this worker's hello for a peer whose own hello was refused.
    /// The peer may have meant another worker that had this address before. The hello shows that.
    pub(crate) fn introduction(&self) -> Option<Vec<u8>> {
        let unsaid = self.role == HandshakeRole::Acceptor && self.theirs.is_none();
        unsaid.then(|| self.ours.to_bytes())
    }

    /// Returns the time by which the greeting must be complete.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Processes a frame of the peer.
    ///
    /// # Errors
    ///
    /// Returns the reason why one side refuses the other.
    pub(crate) fn take(&mut self, frame: &Frame) -> Result<Said, RpcError> {
        match (frame.header.kind, &self.theirs) {
            (FrameKind::Hello, None) => self.hello(&frame.body),
            (FrameKind::Accepted, Some(_)) => self.accepted(&frame.body).map_err(refused),
            (FrameKind::GoAway, _) => {
                let reason = rdzv_rpc_proto::frame::refusal::reason(&frame.body);
                let text = format!("the worker refused the connection: {reason}");
                Err(RpcError::new(RpcErrorKind::Protocol, text))
            }
            (kind, _) => {
                let text = format!("the peer sent a {kind:?} frame before it identified itself");
                Err(RpcError::new(RpcErrorKind::Protocol, text))
            }
        }
    }

    fn hello(&mut self, body: &[u8]) -> Result<Said, RpcError> {
        let theirs = self.check(body).map_err(refused)?;
        self.credentials
            .check(theirs.worker.name.as_str())
            .map_err(|error| RpcError::new(RpcErrorKind::Protocol, error.to_string()))?;
        self.theirs = Some((theirs, body.to_vec()));
        let mut said = Said::default();
        if self.role == HandshakeRole::Acceptor {
            said.answers.push((FrameKind::Hello, self.ours.to_bytes()));
            said.answers.push((FrameKind::Accepted, self.proof()));
        }
        Ok(said)
    }

    fn check(&self, body: &[u8]) -> Result<Hello, HelloError> {
        let theirs = Hello::from_bytes(body)?;
        self.ours.check_peer(&theirs)?;
        // The name is checked before the group: a different worker may also be in a different
        // group.
        if let Some(expected) = &self.expected {
            theirs.check_worker(expected)?;
        }
        self.ours.check_group(&theirs)?;
        Ok(theirs)
    }

    fn accepted(&mut self, body: &[u8]) -> Result<Said, HelloError> {
        let accepted = Accepted::from_bytes(body)?;
        let other = match self.role {
            HandshakeRole::Connector => HandshakeRole::Acceptor,
            HandshakeRole::Acceptor => HandshakeRole::Connector,
        };
        let Some((theirs, _)) = &self.theirs else {
            return Err(HelloError::Unreadable);
        };
        if let Some(token) = &self.token {
            let (connector, acceptor) = self.hellos();
            let proven = accepted
                .proof
                .is_some_and(|proof| token.verify(other, &connector, &acceptor, &proof));
            if !proven {
                return Err(self.ours.wrong_token(theirs));
            }
        }
        let mut said = Said {
            peer: Some(theirs.clone()),
            ..Said::default()
        };
        if self.role == HandshakeRole::Connector {
            said.answers.push((FrameKind::Accepted, self.proof()));
        }
        Ok(said)
    }

    /// Returns the body of this side's `Accepted` frame.
    fn proof(&self) -> Vec<u8> {
        let proof = self.token.as_ref().map(|token| {
            let (connector, acceptor) = self.hellos();
            token.prove(self.role, &connector, &acceptor)
        });
        Accepted { proof }.to_bytes()
    }

    /// Returns both hellos: first the connector's hello, then the acceptor's.
    fn hellos(&self) -> (Vec<u8>, Vec<u8>) {
        let ours = self.ours.to_bytes();
        let theirs = self
            .theirs
            .as_ref()
            .map_or(Vec::new(), |(_, bytes)| bytes.clone());
        match self.role {
            HandshakeRole::Connector => (ours, theirs),
            HandshakeRole::Acceptor => (theirs, ours),
        }
    }
}

fn refused(error: HelloError) -> RpcError {
    let kind = match error {
        // The expected worker has ended, and another one has its address now.
        HelloError::Worker { .. } | HelloError::Itself(_) => RpcErrorKind::PeerLost,
        _ => RpcErrorKind::Protocol,
    };
    RpcError::new(kind, error.to_string())
}
