//! The first frames each way: who the peer is, and whether it belongs to the job.

use std::time::Instant;

use rdzv_rpc_proto::frame::hello::{Accepted, Hello, HelloError};
use rdzv_rpc_proto::frame::{Frame, FrameKind};
use rdzv_rpc_proto::worker::WorkerInfo;
use rdzv_trust::token::Role;

use crate::error::{RpcError, RpcErrorKind};
use crate::transport::{Credentials, Token};

/// One side of the greeting.
pub(crate) struct Greeting {
    role: Role,
    ours: Hello,
    token: Option<Token>,
    /// Who is expected to answer, for the side that connects.
    expected: Option<WorkerInfo>,
    /// What the peer has shown before, for the side that listens.
    credentials: Credentials,
    theirs: Option<(Hello, Vec<u8>)>,
    until: Instant,
}

/// What to answer to a frame of the greeting, and who the peer is when that is settled.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) answers: Vec<(FrameKind, Vec<u8>)>,
    pub(crate) peer: Option<Hello>,
}

impl Greeting {
    /// Of the side that listens; the peer has to say who it is until then.
    pub(crate) fn acceptor(
        ours: Hello,
        token: Option<Token>,
        credentials: Credentials,
        until: Instant,
    ) -> Self {
        Self {
            role: Role::Acceptor,
            ours,
            token,
            expected: None,
            credentials,
            theirs: None,
            until,
        }
    }

    /// Of the side that connects, and the body of its first frame.
    pub(crate) fn connector(
        ours: Hello,
        token: Option<Token>,
        expected: WorkerInfo,
        until: Instant,
    ) -> (Self, Vec<u8>) {
        let hello = ours.to_bytes();
        let greeting = Self {
            role: Role::Connector,
            expected: Some(expected),
            // The credentials have been looked at for whoever is expected.
            ..Self::acceptor(ours, token, Credentials::default(), until)
        };
        (greeting, hello)
    }

    /// Our hello, for a peer whose own was refused: if it meant another worker, whose address is
    /// ours now, it has to know.
    pub(crate) fn introduction(&self) -> Option<Vec<u8>> {
        let unsaid = self.role == Role::Acceptor && self.theirs.is_none();
        unsaid.then(|| self.ours.to_bytes())
    }

    /// When it has to be over.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Takes a frame of the peer.
    ///
    /// # Errors
    ///
    /// Why the peer is refused, or why it refuses.
    pub(crate) fn take(&mut self, frame: &Frame) -> Result<Said, RpcError> {
        match (frame.header.kind, &self.theirs) {
            (FrameKind::Hello, None) => self.hello(&frame.body),
            (FrameKind::Accepted, Some(_)) => self.accepted(&frame.body).map_err(refused),
            (FrameKind::GoAway, _) => {
                let reason = rdzv_rpc_proto::frame::refusal::reason(&frame.body);
                let text = format!("the worker refuses the connection: {reason}");
                Err(RpcError::new(RpcErrorKind::Protocol, text))
            }
            (kind, _) => {
                let text = format!("the peer sent a {kind:?} before it had said who it is");
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
        if self.role == Role::Acceptor {
            said.answers.push((FrameKind::Hello, self.ours.to_bytes()));
            said.answers.push((FrameKind::Accepted, self.proof()));
        }
        Ok(said)
    }

    fn check(&self, body: &[u8]) -> Result<Hello, HelloError> {
        let theirs = Hello::from_bytes(body)?;
        self.ours.check_peer(&theirs)?;
        // First who it is: another one may be of another job too.
        if let Some(expected) = &self.expected {
            theirs.check_worker(expected)?;
        }
        self.ours.check_group(&theirs)?;
        Ok(theirs)
    }

    fn accepted(&mut self, body: &[u8]) -> Result<Said, HelloError> {
        let accepted = Accepted::from_bytes(body)?;
        let other = match self.role {
            Role::Connector => Role::Acceptor,
            Role::Acceptor => Role::Connector,
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
        if self.role == Role::Connector {
            said.answers.push((FrameKind::Accepted, self.proof()));
        }
        Ok(said)
    }

    /// The body of our `Accepted`.
    fn proof(&self) -> Vec<u8> {
        let proof = self.token.as_ref().map(|token| {
            let (connector, acceptor) = self.hellos();
            token.prove(self.role, &connector, &acceptor)
        });
        Accepted { proof }.to_bytes()
    }

    /// What both have said first: the one that connects, and the one that listens.
    fn hellos(&self) -> (Vec<u8>, Vec<u8>) {
        let ours = self.ours.to_bytes();
        let theirs = self
            .theirs
            .as_ref()
            .map_or(Vec::new(), |(_, bytes)| bytes.clone());
        match self.role {
            Role::Connector => (ours, theirs),
            Role::Acceptor => (theirs, ours),
        }
    }
}

fn refused(error: HelloError) -> RpcError {
    let kind = match error {
        // The one that was meant has ended, and another one has its address now.
        HelloError::Worker { .. } | HelloError::Itself(_) => RpcErrorKind::PeerLost,
        _ => RpcErrorKind::Protocol,
    };
    RpcError::new(kind, error.to_string())
}
