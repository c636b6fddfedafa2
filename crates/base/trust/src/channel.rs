//! A connection that is encrypted or not, for those who read and write it either way.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::handshake::{self, ANSWER_LENGTH, LONGEST_REFUSAL, Refused};
use crate::token::nonce;
use crate::{Credentials, Identity, Session, Token};

/// The least time that a read or write gets, because zero would be for ever.
const LEAST: Duration = Duration::from_millis(1);

/// The most time for a server to prove who it is, however long the caller has.
const MOST: Duration = Duration::from_secs(10);

/// A TCP connection, perhaps with TLS on it.
pub enum Channel {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<Session<TcpStream>>),
}

/// Why a connection cannot be used. The texts read after the peer's address.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// One side refuses the other, and trying again will not change that.
    #[error("{0}")]
    Refused(String),
    /// The peer closed, or said nothing.
    #[error("{0}")]
    Silent(String),
}

impl Channel {
    /// The side that connects, on a stream that blocks: the handshake of TLS and that of the token, as far as
    /// there are credentials. Returns the bytes that have to be sent first, with those of the caller behind
    /// them. It takes at most `within`, and at most 10 s. Read and write timeouts of the stream are changed.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(
        stream: TcpStream,
        credentials: &Credentials,
        within: Duration,
    ) -> Result<(Self, Vec<u8>), OpenError> {
        let until = Instant::now() + within.min(MOST);
        let mut channel = match &credentials.identity {
            Some(identity) => Self::encrypt(stream, identity, until)?,
            None => Self::Plain(stream),
        };
        let first = match &credentials.token {
            Some(token) => channel.prove(token, until)?,
            None => Vec::new(),
        };
        Ok((channel, first))
    }

    fn encrypt(stream: TcpStream, identity: &Identity, until: Instant) -> Result<Self, OpenError> {
        let mut session = Session::connector(identity, stream).map_err(OpenError::Refused)?;
        loop {
            set_timeouts(session.stream(), until).map_err(|e| OpenError::Silent(e.to_string()))?;
            match session.handshake() {
                Ok(true) => return Ok(Self::Tls(Box::new(session))),
                Ok(false) if Instant::now() < until => {}
                Ok(false) => {
                    let what = "it did not answer the TLS handshake; it may have no --tls-cert";
                    return Err(OpenError::Silent(what.to_owned()));
                }
                Err(why) => return Err(OpenError::Refused(format!("TLS failed: {why}"))),
            }
        }
    }

    fn prove(&mut self, token: &Token, until: Instant) -> Result<Vec<u8>, OpenError> {
        let hello = handshake::hello(nonce());
        set_timeouts(self.stream(), until).map_err(unanswered)?;
        self.write_all(&hello).map_err(unanswered)?;
        let mut answer = [0; ANSWER_LENGTH];
        let mut length = 0;
        while length < ANSWER_LENGTH {
            set_timeouts(self.stream(), until).map_err(unanswered)?;
            match self.read(&mut answer[length..]) {
                Ok(0) => match length {
                    0 => return Err(unanswered(io::ErrorKind::UnexpectedEof.into())),
                    _ => return Err(OpenError::Refused(shown(&answer[..length]))),
                },
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {}
                Err(error) => return Err(unanswered(error)),
            }
            if answer[0] != handshake::OPCODE {
                return Err(OpenError::Refused(self.rest_of_refusal(&answer[..length])));
            }
        }
        match handshake::answer_to(token, &hello, &answer) {
            Ok(proof) => Ok(proof.to_vec()),
            Err(why @ (Refused::WrongToken | Refused::Version)) => {
                Err(OpenError::Refused(format!("it {why}")))
            }
        }
    }

    /// Reads the rest of a line that stands in place of an answer; the text for it.
    pub fn rest_of_refusal(&mut self, first: &[u8]) -> String {
        let mut line = first.to_vec();
        let mut piece = [0; LONGEST_REFUSAL];
        while !line.contains(&b'\n')
            && line.len() < LONGEST_REFUSAL
            && let Ok(count @ 1..) = self.read(&mut piece)
        {
            line.extend_from_slice(&piece[..count]);
        }
        shown(&line)
    }

    /// The connection below.
    pub fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(session) => session.stream(),
        }
    }

    /// Whether it is encrypted. Then more may be there to read although nothing more arrives.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes the beginning of the parts; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// Those of the stream. After [`io::ErrorKind::WouldBlock`], the next call has to begin with
    /// the same bytes.
    pub fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_vectored(parts),
            Self::Tls(session) => session.write(parts),
        }
    }
}

/// The reason why no proof came.
fn unanswered(error: io::Error) -> OpenError {
    OpenError::Silent(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it accepted the connection and did not prove the job token".to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "it closed the connection when it was asked to prove the job token; PyTorch's store and rdzv \
             of before tokens do that: give it the same --token-file, or leave ours out"
                .to_owned()
        }
        // The peer looks at our certificate after its own part of the handshake.
        io::ErrorKind::InvalidData => return OpenError::Refused(format!("TLS failed: {error}")),
        _ => error.to_string(),
    })
}

/// The text for bytes in place of an answer: the reason of the peer to refuse, or the bytes.
fn shown(bytes: &[u8]) -> String {
    match handshake::reason(bytes) {
        Some(reason) => format!("it refuses: {}", reason.escape_ascii()),
        None => format!(
            "it does not prove the job token, but answered \"{}\"",
            bytes[..bytes.len().min(64)].escape_ascii()
        ),
    }
}

fn set_timeouts(stream: &TcpStream, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now()).max(LEAST);
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

impl Read for Channel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into),
            Self::Tls(session) => session.read(into),
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_parts(&[IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peer = self.stream().peer_addr();
        write!(formatter, "Channel({peer:?}, TLS: {})", self.is_encrypted())
    }
}
