//! Environment variables as a value.
//!
//! Except for [`Environment::of_process`] and the folder for temporary files, this crate reads no
//! variables of the process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rdzv_core::env::{RDZV_JOB_TOKEN_FILE, RDZV_TLS_CA, RDZV_TLS_CERT, RDZV_TLS_KEY};
use rdzv_store::{Credentials, Identity, Token};

use crate::RendezvousError;

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Source of environment variables.
#[derive(Clone)]
pub struct Environment {
    lookup: Arc<Lookup>,
}

impl Environment {
    /// Returns the environment of this process.
    ///
    /// Each [`Environment::get`] reads the variable again. A value that is not Unicode counts as
    /// not set.
    pub fn of_process() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Returns an environment with exactly these variables.
    pub fn of<K: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables: BTreeMap<String, String> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self::from_lookup(move |name| variables.get(name).cloned())
    }

    /// Returns an environment that takes each value from a closure.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            lookup: Arc::new(lookup),
        }
    }

    /// Returns the value of a variable; an empty value counts as not set.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// Reads the credentials of this worker from files that variables name.
    ///
    /// The agent has set these variables for the worker.
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

    /// `true` if the variable is `y`, `yes`, `t`, `true` or `1`, in any case.
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
