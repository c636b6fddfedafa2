//! The credentials with which a process proves that it belongs to its job.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::token::WeakToken;
use crate::{Identity, Token};

/// The token of the job and the certificates of this process, both optional.
/// Clones are cheap.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Token whose possession both sides of a connection prove.
    pub token: Option<Token>,
    /// Certificates of this process.
    /// With them, connections are encrypted and both sides present a certificate.
    pub identity: Option<Arc<Identity>>,
}

/// Reason why a job token cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {source}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The token is too short.
    #[error("{origin}: {source}")]
    Weak {
        /// File or variable that holds the token.
        origin: String,
        /// Error with the length of the token.
        source: WeakToken,
    },
}

impl Credentials {
    /// `true` if a peer does not have to prove anything.
    pub fn is_empty(&self) -> bool {
        self.token.is_none() && self.identity.is_none()
    }
}

/// Compares tokens by value, and certificates by address.
impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let same_token = match (&self.token, &other.token) {
            (Some(ours), Some(theirs)) => ours.is_bearer(&theirs.bearer()),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        let same_identity = match (&self.identity, &other.identity) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        same_token && same_identity
    }
}

impl Eq for Credentials {}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (token, tls) = (self.token.is_some(), self.identity.is_some());
        write!(formatter, "Credentials(token: {token}, TLS: {tls})")
    }
}

impl Token {
    /// Reads the token from a file: its bytes without surrounding white space.
    ///
    /// # Errors
    ///
    /// Returns [`TokenError`] if the file cannot be read, or the token has fewer than 16 bytes.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |source| TokenError::File {
            path: path.to_owned(),
            source,
        };
        // The bytes are zeroed before their memory is freed, because a core file may contain that
        // memory.
        let text = Zeroizing::new(fs::read(path).map_err(unreadable)?);
        Self::of(&text, path.display().to_string())
    }

    /// Creates a token from a text; white space around it is not part of the token.
    ///
    /// Errors contain `origin`, the file or variable of the text.
    ///
    /// # Errors
    ///
    /// Returns [`TokenError::Weak`] if the token has fewer than 16 bytes.
    pub fn of(text: &[u8], origin: String) -> Result<Self, TokenError> {
        Self::new(text.trim_ascii()).map_err(|source| TokenError::Weak { origin, source })
    }
}

/// `true` if the permissions of a file let users other than its owner read it.
///
/// # Errors
///
/// Returns the system's error.
pub fn is_readable_by_others(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o044 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::HandshakeRole;

    #[test]
    fn white_space_around_a_token_does_not_count() {
        let bare = Token::of(b"0123456789abcdef", "x".to_owned()).unwrap();
        let spaced = Token::of(b" 0123456789abcdef\r\n", "x".to_owned()).unwrap();
        let proof = bare.prove(HandshakeRole::Connector, b"a", b"b");
        assert!(spaced.verify(HandshakeRole::Connector, b"a", b"b", &proof));
    }

    #[test]
    fn a_token_that_cannot_be_used_is_named_by_its_origin_and_not_shown() {
        let error = Token::of(b"secret\n", "RDZV_JOB_TOKEN".to_owned()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "RDZV_JOB_TOKEN: a job token of 6 bytes is too easy to guess: use at least 16 random \
             bytes"
        );
        let error = Token::from_file(Path::new("/nowhere/token")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the token file /nowhere/token: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn credentials_are_not_printed() {
        let token = Some(Token::new(b"0123456789abcdef").unwrap());
        let credentials = Credentials {
            token,
            identity: None,
        };
        assert!(!credentials.is_empty());
        assert_eq!(
            format!("{credentials:?}"),
            "Credentials(token: true, TLS: false)"
        );
    }
}
