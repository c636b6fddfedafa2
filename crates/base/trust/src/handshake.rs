//! The first bytes of a connection between two processes of a job with a token.
//!
//! Each process proves to the other that it has the token before the other reads anything else.
//! With TLS, these bytes are the first ones that are encrypted.
//!
//! ```text
//!   connector                               acceptor
//!   hello:  OPCODE MAGIC VERSION nonce ───►
//!           ◄─── OPCODE MAGIC VERSION nonce proof
//!   proof ────────────────────────────────►
//!   the connection's own first bytes ─────►       (they need not wait for an answer)
//! ```
//!
//! A proof is the HMAC of both hellos with the token (see [`Token::prove`]). It is therefore valid
//! only for this connection, this side and this job. A refused peer receives one line of text
//! instead of the answer, or after the answer if its proof is wrong. The line begins with
//! [`REFUSAL`]. Clients of rdzv without a token do not expect the line, but report it.

use crate::token::{HandshakeRole, NONCE_LENGTH, Token};

/// The first byte of a hello.
/// This is the first of the opcodes that the store's table reserves for the token.
pub const OPCODE: u8 = 0x30;

/// The first byte of a TLS connection: the type of a handshake record.
pub const TLS_RECORD: u8 = 0x16;

/// The first bytes of a hello: the opcode, a name and the version.
const HEAD: [u8; 6] = [OPCODE, b'r', b'd', b'z', b'v', 1];

/// Number of bytes of a hello.
pub const HELLO_LENGTH: usize = HEAD.len() + NONCE_LENGTH;

/// Number of bytes of a proof.
pub const PROOF_LENGTH: usize = 32;

/// Number of bytes of the acceptor's answer.
pub const ANSWER_LENGTH: usize = HELLO_LENGTH + PROOF_LENGTH;

/// Beginning of the refusal line, which a refused peer receives.
pub const REFUSAL: &str = "rdzv refuses: ";

/// Maximum number of bytes of a refusal line, including the newline.
pub const LONGEST_REFUSAL: usize = 300;

/// A hello as bytes.
pub type HelloBytes = [u8; HELLO_LENGTH];

/// Reason why a peer is refused. The text follows "the peer …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The peer has another token, or replays the bytes of another peer.
    #[error("has a different job token; check that both sides read the same --token-file")]
    WrongToken,
    /// The peer uses another version of the handshake.
    #[error("uses a different version of the handshake; run the same version of rdzv on all nodes")]
    Version,
}

/// Creates a hello with this nonce.
pub fn hello(nonce: [u8; NONCE_LENGTH]) -> HelloBytes {
    let mut hello = [0; HELLO_LENGTH];
    hello[..HEAD.len()].copy_from_slice(&HEAD);
    hello[HEAD.len()..].copy_from_slice(&nonce);
    hello
}

/// Checks the answer of the acceptor to `hello`; returns the proof to send.
///
/// # Errors
///
/// Returns the reason why the acceptor is refused.
pub fn answer_to(
    token: &Token,
    hello: &HelloBytes,
    answer: &[u8; ANSWER_LENGTH],
) -> Result<[u8; PROOF_LENGTH], Refused> {
    let (theirs, proof) = answer.split_at(HELLO_LENGTH);
    if !theirs.starts_with(&HEAD) {
        return Err(Refused::Version);
    }
    if !token.verify(HandshakeRole::Acceptor, hello, theirs, proof) {
        return Err(Refused::WrongToken);
    }
    Ok(token.prove(HandshakeRole::Connector, hello, theirs))
}

/// The acceptor's side of one connection.
/// Buffers at most [`ANSWER_LENGTH`] bytes.
#[derive(Debug)]
pub struct Acceptor {
    token: Token,
    ours: HelloBytes,
    /// Received bytes of the hello, followed by those of the proof.
    received: Vec<u8>,
}

/// Progress of the handshake after bytes from the connector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    More,
    /// Send this answer, and continue after this number of used bytes.
    Answer(usize, [u8; ANSWER_LENGTH]),
    /// The connector belongs to the job.
    /// Its own first bytes come after this number of used bytes.
    Proven(usize),
}

impl Acceptor {
    /// Creates the acceptor's side. The nonce must be random and used only once.
    pub fn new(token: Token, nonce: [u8; NONCE_LENGTH]) -> Self {
        Self {
            token,
            ours: hello(nonce),
            received: Vec::new(),
        }
    }

    /// Handles bytes from the connector.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connector is refused.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Progress, Refused> {
        let is_greeted = self.received.len() >= HELLO_LENGTH;
        let whole = if is_greeted {
            ANSWER_LENGTH
        } else {
            HELLO_LENGTH
        };
        let used = bytes.len().min(whole - self.received.len());
        self.received.extend_from_slice(&bytes[..used]);
        let head = self.received.len().min(HEAD.len());
        if self.received[..head] != HEAD[..head] {
            return Err(Refused::Version);
        }
        if self.received.len() < whole {
            return Ok(Progress::More);
        }
        let (theirs, proof) = self.received.split_at(HELLO_LENGTH);
        if !is_greeted {
            let mut answer = [0; ANSWER_LENGTH];
            answer[..HELLO_LENGTH].copy_from_slice(&self.ours);
            let proof = self
                .token
                .prove(HandshakeRole::Acceptor, theirs, &self.ours);
            answer[HELLO_LENGTH..].copy_from_slice(&proof);
            return Ok(Progress::Answer(used, answer));
        }
        if self
            .token
            .verify(HandshakeRole::Connector, theirs, &self.ours, proof)
        {
            Ok(Progress::Proven(used))
        } else {
            Err(Refused::WrongToken)
        }
    }
}

/// Returns the refusal line with this reason, truncated to its maximum length.
pub fn refusal(why: &str) -> Vec<u8> {
    let line = format!("{REFUSAL}{why}");
    let mut end = line.len().min(LONGEST_REFUSAL - 1);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    [&line.as_bytes()[..end], b"\n"].concat()
}

/// `true` if the bytes are the beginning of a refusal line, however short.
pub fn is_refusal(bytes: &[u8]) -> bool {
    let common = bytes.len().min(REFUSAL.len());
    common > 0 && bytes[..common] == REFUSAL.as_bytes()[..common]
}

/// Returns the reason in a refusal line, if the bytes begin with [`REFUSAL`].
/// The text comes from the peer and must be escaped before it is displayed.
pub fn reason(bytes: &[u8]) -> Option<&[u8]> {
    let text = bytes.strip_prefix(REFUSAL.as_bytes())?;
    text.split(|byte| *byte == b'\n').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(byte: u8) -> Token {
        Token::new(&[byte; 16]).unwrap()
    }

    /// Returns the acceptor's answers to these bytes.
    /// The bytes are passed in pieces of `piece` bytes.
    fn accept(
        acceptor: &mut Acceptor,
        mut bytes: &[u8],
        piece: usize,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), Refused> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            let next = &bytes[..piece.min(bytes.len())];
            match acceptor.take(next)? {
                Progress::More => bytes = &bytes[next.len()..],
                Progress::Answer(used, answer) => {
                    answers.extend_from_slice(&answer);
                    bytes = &bytes[used..];
                }
                Progress::Proven(used) => return Ok((answers, Some(bytes[used..].to_vec()))),
            }
        }
        Ok((answers, None))
    }

    fn answer_of(acceptor: &mut Acceptor, hello: &HelloBytes) -> [u8; ANSWER_LENGTH] {
        let (answer, _) = accept(acceptor, hello, usize::MAX).unwrap();
        answer.try_into().unwrap()
    }

    #[test]
    fn both_sides_prove_the_token_however_the_bytes_are_cut() {
        for piece in [1, 7, HELLO_LENGTH, 1000] {
            let mut acceptor = Acceptor::new(token(1), [2; NONCE_LENGTH]);
            let ours = hello([1; NONCE_LENGTH]);
            let (answer, _) = accept(&mut acceptor, &ours, piece).unwrap();
            let proof = answer_to(&token(1), &ours, &answer.try_into().unwrap()).unwrap();
            let behind = [&proof[..], b"VALIDATE"].concat();
            let (_, rest) = accept(&mut acceptor, &behind, piece).unwrap();
            // The bytes of the last piece after the proof.
            let rest = rest.unwrap();
            assert!(b"VALIDATE".starts_with(&rest[..]), "{piece}: {rest:?}");
        }
    }

    #[test]
    fn another_token_is_refused_by_both_sides() {
        let ours = hello([1; NONCE_LENGTH]);
        let mut acceptor = Acceptor::new(token(1), [2; NONCE_LENGTH]);
        let answer = answer_of(&mut acceptor, &ours);
        assert_eq!(
            answer_to(&token(2), &ours, &answer),
            Err(Refused::WrongToken)
        );
        let theirs = &answer[..HELLO_LENGTH];
        let wrong = token(2).prove(HandshakeRole::Connector, &ours, theirs);
        assert_eq!(acceptor.take(&wrong), Err(Refused::WrongToken));
    }

    #[test]
    fn a_handshake_that_is_repeated_proves_nothing() {
        let ours = hello([1; NONCE_LENGTH]);
        let mut first = Acceptor::new(token(1), [2; NONCE_LENGTH]);
        let proof = answer_to(&token(1), &ours, &answer_of(&mut first, &ours)).unwrap();
        let mut second = Acceptor::new(token(1), [3; NONCE_LENGTH]);
        answer_of(&mut second, &ours);
        assert_eq!(second.take(&proof), Err(Refused::WrongToken));
    }

    #[test]
    fn a_proof_that_is_reflected_proves_nothing() {
        // The connector sends the acceptor's own hello and proof back.
        let mut other = Acceptor::new(token(1), [9; NONCE_LENGTH]);
        let mut acceptor = Acceptor::new(token(1), [9; NONCE_LENGTH]);
        let answer = answer_of(&mut other, &hello([9; NONCE_LENGTH]));
        let theirs: HelloBytes = answer[..HELLO_LENGTH].try_into().unwrap();
        answer_of(&mut acceptor, &theirs);
        assert_eq!(
            acceptor.take(&answer[HELLO_LENGTH..]),
            Err(Refused::WrongToken)
        );
    }

    #[test]
    fn other_first_bytes_are_refused_at_once() {
        let mut acceptor = Acceptor::new(token(1), [2; NONCE_LENGTH]);
        assert_eq!(acceptor.take(b"0rdzw"), Err(Refused::Version));
        let mut acceptor = Acceptor::new(token(1), [2; NONCE_LENGTH]);
        assert_eq!(acceptor.take(&[OPCODE]), Ok(Progress::More));
        assert_eq!(acceptor.take(b"x"), Err(Refused::Version));
    }

    #[test]
    fn a_refusal_is_one_line_with_its_reason() {
        assert_eq!(
            reason(&refusal("no token here")),
            Some(&b"no token here"[..])
        );
        assert_eq!(reason(b"HTTP/1.1 400"), None);
        assert!(is_refusal(b"rd") && is_refusal(&refusal("x")));
        assert!(!is_refusal(b"") && !is_refusal(b"rx"));
        let long = refusal(&"ä".repeat(LONGEST_REFUSAL));
        assert!(long.len() <= LONGEST_REFUSAL && long.ends_with(b"\n"));
        assert!(str::from_utf8(&long).is_ok());
    }
}
