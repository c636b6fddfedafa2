//! The environment as a value, so that nothing below depends on, or changes, that of the process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rdzv_core::env::{RDZV_JOB_TOKEN_FILE, RDZV_TLS_CA, RDZV_TLS_CERT, RDZV_TLS_KEY};
use rdzv_store::{Credentials, Identity, Token};

use crate::RendezvousError;

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Where environment variables are looked up.
#[derive(Clone)]
pub struct Environment {
    lookup: Arc<Lookup>,
}

impl Environment {
    /// The environment of this process, read when a variable is asked for. A value that is not
    /// Unicode counts as not set.
    pub fn of_process() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// These variables and no others.
    pub fn of<K: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables: BTreeMap<String, String> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self::from_lookup(move |name| variables.get(name).cloned())
    }

    /// Whatever the closure says.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            lookup: Arc::new(lookup),
        }
    }

    /// The value of a variable; an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// The credentials that the agent has given this worker, in files that variables name.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Argument`] if a file cannot be used.
    pub fn credentials(&self) -> Result<Credentials, RendezvousError> {
        let path = |name: &str| self.get(name).map(PathBuf::from);
        let mut credentials = Credentials::default();
        if let Some(path) = path(RDZV_JOB_TOKEN_FILE) {
            credentials.token = Some(Token::from_file(&path).map_err(unusable)?);
        }
        if let (Some(cert), Some(key), Some(ca)) =
            (path(RDZV_TLS_CERT), path(RDZV_TLS_KEY), path(RDZV_TLS_CA))
        {
            let identity = Identity::from_files(&cert, &key, &ca).map_err(unusable)?;
            credentials.identity = Some(Arc::new(identity));
        }
        Ok(credentials)
    }

    /// Whether a variable is one of the words for yes: `y`, `yes`, `t`, `true`, `1`, in any case.
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            ["y", "yes", "t", "true", "1"].contains(&value.to_lowercase().as_str())
        })
    }
}

fn unusable(error: impl fmt::Display) -> RendezvousError {
    RendezvousError::Argument(error.to_string())
}

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Environment")
            .finish_non_exhaustive()
    }
}
