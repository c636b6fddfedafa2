//! The token of a job, and the proof that a process has it.

use std::fmt;
use std::sync::Arc;

use ring::rand::SecureRandom as _;
use ring::{hmac, rand};

/// Number of random bytes that each side sends.
pub const NONCE_LENGTH: usize = 32;

/// Minimum number of bytes of a token.
/// A shorter token could be guessed from a proof.
pub const SHORTEST: usize = 16;

/// A secret that all processes of a job share.
/// The token is never sent and never printed.
#[derive(Clone)]
pub struct Token(Arc<hmac::Key>);

/// Error: a token is too short to be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a job token of {} is too easy to guess: use at least {SHORTEST} random bytes",
    in_bytes(*.0)
)]
pub struct WeakToken(usize);

fn in_bytes(length: usize) -> String {
    match length {
        1 => "1 byte".to_owned(),
        _ => format!("{length} bytes"),
    }
}

/// The side of a connection that a peer is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeRole {
    /// The peer that connected.
    Connector,
    /// The peer that listened.
    Acceptor,
}

impl Token {
    /// Creates a token.
    ///
    /// # Errors
    ///
    /// [`WeakToken`] if the secret has fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, WeakToken> {
        if secret.len() < SHORTEST {
            return Err(WeakToken(secret.len()));
        }
        Ok(Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, secret))))
    }

    /// Returns the proof of the side in this role: an HMAC-SHA-256 of both hellos.
    ///
    /// # Panics
    ///
    /// Never: the hash has 32 bytes.
    pub fn prove(&self, prover: HandshakeRole, connector: &[u8], acceptor: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&self.0, &transcript(prover, connector, acceptor));
        let tag = tag.as_ref().try_into();
        tag.expect("SHA-256 makes 32 bytes")
    }

    /// `true` if the proof of a peer in this role is valid.
    /// The check takes the same time for every wrong proof of 32 bytes.
    pub fn verify(
        &self,
        prover: HandshakeRole,
        connector: &[u8],
        acceptor: &[u8],
        proof: &[u8],
    ) -> bool {
        hmac::verify(&self.0, &transcript(prover, connector, acceptor), proof).is_ok()
    }
}

/// The text whose HMAC is the bearer token.
const BEARER: &[u8] = b"rdzv status pages";

impl Token {
    /// Returns the bearer token for readers of status pages.
    /// The bearer token has 64 hexadecimal digits. The job token cannot be derived from it.
    pub fn bearer(&self) -> String {
        let tag = hmac::sign(&self.0, BEARER);
        tag.as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// `true` if `shown` is the bearer token.
    /// The check takes the same time for every wrong text of 64 hexadecimal digits.
    pub fn is_bearer(&self, shown: &str) -> bool {
        let digits = shown.as_bytes().chunks(2).map(|pair| {
            let pair = str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes: Option<Vec<u8>> = digits.collect();
        bytes.is_some_and(|bytes| hmac::verify(&self.0, BEARER, &bytes).is_ok())
    }
}

/// Generates a new token: 64 random hexadecimal digits and a newline.
///
/// # Panics
///
/// Panics if the system provides no random bytes, without which nothing is safe.
pub fn generate() -> String {
    let digits: String = nonce().iter().map(|byte| format!("{byte:02x}")).collect();
    digits + "\n"
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

/// Returns the bytes that the side in this role signs with the token.
/// `connector` and `acceptor` are the bytes of both hellos.
pub fn transcript(prover: HandshakeRole, connector: &[u8], acceptor: &[u8]) -> Vec<u8> {
    let mut text = match prover {
        HandshakeRole::Connector => b"rdzv rpc connector".to_vec(),
        HandshakeRole::Acceptor => b"rdzv rpc acceptor\0".to_vec(),
    };
    for hello in [connector, acceptor] {
        text.extend_from_slice(&(hello.len() as u64).to_le_bytes());
        text.extend_from_slice(hello);
    }
    text
}

/// Returns random bytes for a hello.
///
/// # Panics
///
/// Panics if the system provides no random bytes, without which nothing is safe.
pub fn nonce() -> [u8; NONCE_LENGTH] {
    let mut bytes = [0; NONCE_LENGTH];
    let filled = rand::SystemRandom::new().fill(&mut bytes);
    filled.expect("the system has randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLOS: (&[u8], &[u8]) = (b"connector", b"acceptor");

    fn token(byte: u8) -> Token {
        Token::new(&[byte; 16]).unwrap()
    }

    fn verifies(
        token: &Token,
        prover: HandshakeRole,
        hellos: (&[u8], &[u8]),
        proof: &[u8; 32],
    ) -> bool {
        token.verify(prover, hellos.0, hellos.1, proof)
    }

    #[test]
    fn a_proof_holds_for_one_token_role_and_conversation() {
        let proof = token(1).prove(HandshakeRole::Connector, HELLOS.0, HELLOS.1);
        assert!(verifies(
            &token(1),
            HandshakeRole::Connector,
            HELLOS,
            &proof
        ));
        assert!(!verifies(
            &token(2),
            HandshakeRole::Connector,
            HELLOS,
            &proof
        ));
        assert!(!verifies(
            &token(1),
            HandshakeRole::Acceptor,
            HELLOS,
            &proof
        ));
        let others = (b"connectos".as_slice(), HELLOS.1);
        assert!(!verifies(
            &token(1),
            HandshakeRole::Connector,
            others,
            &proof
        ));
        let mut changed = proof;
        changed[31] ^= 1;
        assert!(!verifies(
            &token(1),
            HandshakeRole::Connector,
            HELLOS,
            &changed
        ));
    }

    #[test]
    fn it_is_hmac_sha_256_of_the_transcript() {
        // The expected value comes from Python: `hmac.new(b"k" * 16, text, "sha256")`.
        let proof = token(b'k').prove(HandshakeRole::Acceptor, b"", b"");
        let text: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            text,
            "6b359f535f3b5befea469dff652f39dce72b90b730fc64f3c1e1e7570685d126"
        );
    }

    #[test]
    fn a_short_token_is_refused_and_none_is_printed() {
        let error = Token::new(b"secret").unwrap_err();
        assert_eq!(
            error.to_string(),
            "a job token of 6 bytes is too easy to guess: use at least 16 random bytes"
        );
        assert_eq!(format!("{:?}", token(b'k')), "Token(…)");
    }

    #[test]
    fn the_bearer_token_is_derived_from_the_token_of_the_job() {
        let bearer = token(1).bearer();
        assert_eq!(bearer.len(), 64);
        assert!(token(1).is_bearer(&bearer));
        assert!(!token(2).is_bearer(&bearer));
        for wrong in ["", "x", &bearer[1..], &bearer.replace(|_: char| true, "ä")] {
            assert!(!token(1).is_bearer(wrong), "{wrong}");
        }
    }

    #[test]
    fn no_two_nonces_are_the_same() {
        assert_ne!(nonce(), nonce());
    }

    #[test]
    fn no_two_conversations_have_the_same_transcript() {
        let base = transcript(HandshakeRole::Connector, b"ab", b"c");
        assert_ne!(base, transcript(HandshakeRole::Acceptor, b"ab", b"c"));
        assert_ne!(base, transcript(HandshakeRole::Connector, b"a", b"bc"));
        assert_ne!(base, transcript(HandshakeRole::Connector, b"c", b"ab"));
    }
}
