//! A connection that may be encrypted, with one interface for both cases.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::handshake::{self, ANSWER_LENGTH, LONGEST_REFUSAL, Refused};
use crate::token::nonce;
use crate::{Credentials, Identity, Session, Token};

/// Minimum timeout of a read or write; a timeout of zero is invalid.
const LEAST: Duration = Duration::from_millis(1);

/// Maximum time for the handshakes with a server.
/// The caller's limit may be longer.
const MOST: Duration = Duration::from_secs(10);

/// Maximum time for the rest of a refusal, which is one short line.
const REFUSAL: Duration = Duration::from_secs(1);

/// Advice on a peer that does not complete the TLS handshake.
const CHECK_TLS: &str = "check that it was started with --tls-cert";

/// A TCP connection, with or without TLS.
pub enum Channel {
    /// Unencrypted bytes.
    Plain(TcpStream),
    /// Encrypted bytes.
    Tls(Box<Session<TcpStream>>),
}

/// Reason why a connection cannot be used. The texts follow the peer's address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// One side refuses the other, or the peer's answer is not valid.
    ///
    /// Another attempt would usually fail, too.
    #[error("{0}")]
    Refused(String),
    /// The connection ended or failed, or the peer did not answer in time.
    #[error("{0}")]
    Silent(String),
}

impl Channel {
    /// Opens the connecting side on a blocking stream.
    ///
    /// Carries out the handshakes of TLS and of the token, if there are credentials for them.
    /// Returns bytes that the caller must send before its own bytes. The handshakes may take at
    /// most `within`, and at most 10 s. May change the read and write timeouts of the stream.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError`] if one side refuses the other, or if the peer does not answer.
    pub fn open(
        stream: TcpStream,
        credentials: &Credentials,
        within: Duration,
    ) -> Result<(Self, Vec<u8>), OpenError> {
        let deadline = Instant::now() + within.min(MOST);
        let mut channel = match &credentials.identity {
            Some(identity) => Self::encrypt(stream, identity, deadline)?,
            None => Self::Plain(stream),
        };
        let first = match &credentials.token {
            Some(token) => channel.prove(token, deadline)?,
            None => Vec::new(),
        };
        Ok((channel, first))
    }

    fn encrypt(
        stream: TcpStream,
        identity: &Identity,
        deadline: Instant,
    ) -> Result<Self, OpenError> {
        let mut session = Session::connector(identity, stream).map_err(OpenError::Refused)?;
        loop {
            set_timeouts(session.stream(), deadline)
                .map_err(|e| OpenError::Silent(e.to_string()))?;
            match session.handshake() {
                Ok(true) => return Ok(Self::Tls(Box::new(session))),
                Ok(false) if Instant::now() < deadline => {}
                Ok(false) => {
                    let what = format!("it did not answer the TLS handshake; {CHECK_TLS}");
                    return Err(OpenError::Silent(what));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted if Instant::now() < deadline => {}
                    io::ErrorKind::InvalidData => {
                        return Err(OpenError::Refused(format!("TLS failed: {error}")));
                    }
                    _ => {
                        let what = format!("TLS failed: {error}; {CHECK_TLS}");
                        return Err(OpenError::Silent(what));
                    }
                },
            }
        }
    }

    fn prove(&mut self, token: &Token, deadline: Instant) -> Result<Vec<u8>, OpenError> {
        let hello = handshake::hello(nonce());
        set_timeouts(self.stream(), deadline).map_err(unanswered)?;
        self.write_all(&hello).map_err(unanswered)?;
        let mut answer = [0; ANSWER_LENGTH];
        let mut length = 0;
        while length < ANSWER_LENGTH {
            set_timeouts(self.stream(), deadline).map_err(unanswered)?;
            match self.read(&mut answer[length..]) {
                Ok(0) => match length {
                    0 => return Err(unanswered(io::ErrorKind::UnexpectedEof.into())),
                    _ => return Err(OpenError::Refused(shown(&answer[..length]))),
                },
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
                Err(error) => return Err(unanswered(error)),
            }
            if answer[0] != handshake::OPCODE {
                let left = deadline.saturating_duration_since(Instant::now());
                return Err(OpenError::Refused(
                    self.rest_of_refusal(&answer[..length], left),
                ));
            }
        }
        match handshake::answer_to(token, &hello, &answer) {
            Ok(proof) => Ok(proof.to_vec()),
            Err(why @ (Refused::WrongToken | Refused::Version)) => {
                Err(OpenError::Refused(format!("it {why}")))
            }
        }
    }

    /// Reads the rest of a refusal that arrived instead of an answer.
    /// Returns a message with the reason, or with the part that arrives within this time and
    /// within 1 s.
    pub fn rest_of_refusal(&mut self, first: &[u8], within: Duration) -> String {
        let deadline = Instant::now() + within.min(REFUSAL);
        let mut line = first.to_vec();
        let mut piece = [0; LONGEST_REFUSAL];
        while !line.contains(&b'\n')
            && line.len() < LONGEST_REFUSAL
            && Instant::now() < deadline
            && set_timeouts(self.stream(), deadline).is_ok()
            && let Ok(count @ 1..) = self.read(&mut piece)
        {
            line.extend_from_slice(&piece[..count]);
        }
        shown(&line)
    }

    /// Returns the underlying connection.
    pub fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(session) => session.stream(),
        }
    }

    /// `true` if the connection is encrypted.
    /// In this case, decrypted bytes may be available although the stream is not readable.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes the beginning of the parts; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// Returns the errors of the stream. After [`io::ErrorKind::WouldBlock`], the next call must
    /// begin with the same bytes.
    pub fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_vectored(parts),
            Self::Tls(session) => session.write(parts),
        }
    }
}

/// Returns the reason why no proof arrived.
fn unanswered(error: io::Error) -> OpenError {
    OpenError::Silent(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it accepted the connection but did not prove that it has the job token".to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "it closed the connection instead of proving that it has the job token, as PyTorch's \
             store and early versions of rdzv do; give it the same --token-file, or omit \
             --token-file here"
                .to_owned()
        }
        // The peer checks this process's certificate only after this side has completed the
        // handshake.
        io::ErrorKind::InvalidData => return OpenError::Refused(format!("TLS failed: {error}")),
        _ => error.to_string(),
    })
}

/// Returns the text for bytes that arrived instead of an answer.
/// The text contains the reason for the refusal, or the bytes themselves.
fn shown(bytes: &[u8]) -> String {
    match handshake::reason(bytes) {
        Some(reason) => format!("it refused the connection: {}", reason.escape_ascii()),
        None => format!(
            "it did not prove that it has the job token, but answered \"{}\"",
            bytes[..bytes.len().min(64)].escape_ascii()
        ),
    }
}

fn set_timeouts(stream: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(LEAST);
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_refusal_that_never_ends_is_cut_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        // A byte is there for every read.
        let peer = thread::spawn(move || while peer.write_all(b"x").is_ok() {});
        let mut channel = Channel::Plain(stream);
        let text = channel.rest_of_refusal(b"REFUSED", Duration::ZERO);
        assert!(text.ends_with("answered \"REFUSED\""), "{text}");
        drop(channel);
        peer.join().unwrap();
    }
}
