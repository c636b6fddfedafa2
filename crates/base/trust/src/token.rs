//! The token of a job, and the proof that somebody has it.

use std::fmt;
use std::sync::Arc;

use ring::rand::SecureRandom as _;
use ring::{hmac, rand};

/// The number of random bytes that each side sends.
pub const NONCE_LENGTH: usize = 32;

/// A token has at least so many bytes: a shorter one could be guessed from a proof.
pub const SHORTEST: usize = 16;

/// A secret that all workers of a job share. It is never sent, and never printed.
#[derive(Clone)]
pub struct Token(Arc<hmac::Key>);

/// A token that is too short to be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a job token of {0} bytes can be guessed: take {SHORTEST} random bytes or more")]
pub struct WeakToken(usize);

/// Which side of a connection a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It connected.
    Connector,
    /// It listened.
    Acceptor,
}

impl Token {
    /// A token.
    ///
    /// # Errors
    ///
    /// [`WeakToken`] if it has fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, WeakToken> {
        if secret.len() < SHORTEST {
            return Err(WeakToken(secret.len()));
        }
        Ok(Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, secret))))
    }

    /// The proof of the side in this role, given the bytes of both hellos: HMAC-SHA-256.
    ///
    /// # Panics
    ///
    /// Never: the hash has 32 bytes.
    pub fn prove(&self, prover: Role, connector: &[u8], acceptor: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&self.0, &transcript(prover, connector, acceptor));
        let tag = tag.as_ref().try_into();
        tag.expect("SHA-256 makes 32 bytes")
    }

    /// Whether the proof of a peer in this role is right. It takes the same time whatever is wrong.
    pub fn verify(&self, prover: Role, connector: &[u8], acceptor: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.0, &transcript(prover, connector, acceptor), proof).is_ok()
    }
}

/// The text of which the bearer token is the HMAC.
const BEARER: &[u8] = b"rdzv status pages";

impl Token {
    /// The proof of a reader of status pages, from which the token cannot be found: 64
    /// hexadecimal digits.
    pub fn bearer(&self) -> String {
        let tag = hmac::sign(&self.0, BEARER);
        tag.as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Whether this is the bearer token. It takes the same time whatever is wrong.
    pub fn is_bearer(&self, shown: &str) -> bool {
        let digits = shown.as_bytes().chunks(2).map(|pair| {
            let pair = str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes: Option<Vec<u8>> = digits.collect();
        bytes.is_some_and(|bytes| hmac::verify(&self.0, BEARER, &bytes).is_ok())
    }
}

/// A new token: 64 random hexadecimal digits and a newline.
///
/// # Panics
///
/// If the system has no randomness, without which nothing is safe.
pub fn generate() -> String {
    let digits: String = nonce().iter().map(|byte| format!("{byte:02x}")).collect();
    digits + "\n"
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

/// The bytes that the side in this role signs with the token, given the bytes of both hellos.
pub fn transcript(prover: Role, connector: &[u8], acceptor: &[u8]) -> Vec<u8> {
    let mut text = match prover {
        Role::Connector => b"rdzv rpc connector".to_vec(),
        Role::Acceptor => b"rdzv rpc acceptor\0".to_vec(),
    };
    for hello in [connector, acceptor] {
        text.extend_from_slice(&(hello.len() as u64).to_le_bytes());
        text.extend_from_slice(hello);
    }
    text
}

/// Random bytes for a hello.
///
/// # Panics
///
/// If the system has no randomness, without which nothing is safe.
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

    fn verifies(token: &Token, prover: Role, hellos: (&[u8], &[u8]), proof: &[u8; 32]) -> bool {
        token.verify(prover, hellos.0, hellos.1, proof)
    }

    #[test]
    fn a_proof_holds_for_one_token_role_and_conversation() {
        let proof = token(1).prove(Role::Connector, HELLOS.0, HELLOS.1);
        assert!(verifies(&token(1), Role::Connector, HELLOS, &proof));
        assert!(!verifies(&token(2), Role::Connector, HELLOS, &proof));
        assert!(!verifies(&token(1), Role::Acceptor, HELLOS, &proof));
        let others = (b"connectos".as_slice(), HELLOS.1);
        assert!(!verifies(&token(1), Role::Connector, others, &proof));
        let mut changed = proof;
        changed[31] ^= 1;
        assert!(!verifies(&token(1), Role::Connector, HELLOS, &changed));
    }

    #[test]
    fn it_is_hmac_sha_256_of_the_transcript() {
        // From another implementation: hmac.new(b"k" * 16, text, "sha256") of Python
        let proof = token(b'k').prove(Role::Acceptor, b"", b"");
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
            "a job token of 6 bytes can be guessed: take 16 random bytes or more"
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
        let base = transcript(Role::Connector, b"ab", b"c");
        assert_ne!(base, transcript(Role::Acceptor, b"ab", b"c"));
        assert_ne!(base, transcript(Role::Connector, b"a", b"bc"));
        assert_ne!(base, transcript(Role::Connector, b"c", b"ab"));
    }
}
