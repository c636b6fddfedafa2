//! Registry that maps backend names to their constructors.
//!
//! To add a backend, write a file with its constructor and add a line to
//! [`BackendRegistry::with_defaults`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::dynamic::{C10dRendezvous, c10d};
use crate::etcd::{self, EtcdState};
use crate::rdzv_conf::{NAMES, OF_LAUNCHER};
use crate::recording::Recorded;
use crate::{
    Recorder, RendezvousBackend, RendezvousError, RendezvousEvent, RendezvousParameters,
    StaticRendezvous,
};

/// Function that creates a backend from its parameters.
pub type BackendConstructor = Arc<
    dyn Fn(&RendezvousParameters) -> Result<Box<dyn RendezvousBackend>, RendezvousError>
        + Send
        + Sync,
>;

/// Rendezvous backends by name.
#[derive(Default, Clone)]
pub struct BackendRegistry {
    constructors: BTreeMap<String, BackendConstructor>,
}

impl fmt::Debug for BackendRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.constructors.keys();
        formatter.debug_set().entries(names).finish()
    }
}

impl BackendRegistry {
    /// Returns a registry with the built-in backends.
    ///
    /// They are `static`, `c10d`, `etcd` and `etcd-v2`.
    pub fn with_defaults() -> Self {
        let new_static: BackendConstructor =
            Arc::new(|parameters| Ok(Box::new(StaticRendezvous::from_parameters(parameters)?)));
        let new_c10d: BackendConstructor =
            Arc::new(|parameters| Ok(Box::new(C10dRendezvous::from_parameters(parameters)?)));
        Self {
            constructors: BTreeMap::from([
                (StaticRendezvous::NAME.to_owned(), new_static),
                (C10dRendezvous::NAME.to_owned(), new_c10d),
                (EtcdState::NAME.to_owned(), Arc::new(etcd::from_parameters)),
                (
                    EtcdState::V2_NAME.to_owned(),
                    Arc::new(etcd::from_parameters),
                ),
            ]),
        }
    }

    /// Registers a backend.
    ///
    /// The same constructor can be registered twice. A different constructor under an existing name
    /// is an error.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the name is empty or has a different constructor.
    pub fn register(
        &mut self,
        name: &str,
        constructor: BackendConstructor,
    ) -> Result<(), RendezvousError> {
        if name.is_empty() {
            let text = "The rendezvous backend name must be a non-empty string.";
            return Err(RendezvousError::argument(text));
        }
        match self.constructors.get(name) {
            Some(known) if !Arc::ptr_eq(known, &constructor) => {
                Err(RendezvousError::Argument(format!(
                    "The rendezvous backend '{name}' cannot be registered again as it \
                     is already registered with another constructor."
                )))
            }
            _ => {
                self.constructors.insert(name.to_owned(), constructor);
                Ok(())
            }
        }
    }

    /// Returns `true` if a backend with that name is registered.
    pub fn contains(&self, name: &str) -> bool {
        self.constructors.contains_key(name)
    }

    /// Returns the `--rdzv-conf` options of a built-in backend and of launchers.
    ///
    /// Returns `None` for a backend that the user registered, because its options are unknown.
    pub fn options(&self, name: &str) -> Option<Vec<&'static str>> {
        let dynamic = |own: &[&'static str]| [&NAMES, &OF_LAUNCHER[..], own].concat();
        match name {
            StaticRendezvous::NAME => Some([&OF_LAUNCHER[..], &["store_max_memory"]].concat()),
            C10dRendezvous::NAME => Some(dynamic(&c10d::OPTIONS)),
            EtcdState::NAME | EtcdState::V2_NAME => Some(dynamic(&etcd::OPTIONS)),
            _ => None,
        }
    }

    /// Creates the backend that the parameters specify.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if no backend has this name, the backend rejects the parameters, or the
    /// created backend has a different name.
    pub fn create(
        &self,
        parameters: &RendezvousParameters,
    ) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
        let wanted = &parameters.backend;
        let constructor = self.constructors.get(wanted).ok_or_else(|| {
            RendezvousError::Argument(format!(
                "The rendezvous backend '{wanted}' is not registered. Did you forget to call \
                 `register`?"
            ))
        })?;
        let backend = constructor(parameters)?;
        if backend.name() != wanted {
            return Err(RendezvousError::Argument(format!(
                "The rendezvous backend '{}' does not match the requested backend '{wanted}'.",
                backend.name()
            )));
        }
        Ok(backend)
    }

    /// Creates a backend that records its events in the same way as torchelastic.
    ///
    /// If the backend cannot be created, the recorder receives that error too.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if no backend has this name, the backend rejects the parameters, or the
    /// created backend has a different name.
    pub fn create_recorded(
        &self,
        parameters: &RendezvousParameters,
        recorder: Recorder,
    ) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
        match self.create(parameters) {
            Ok(backend) => Ok(Box::new(Recorded::new(backend, recorder))),
            Err(error) => {
                recorder(RendezvousEvent::failed(&error));
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(backend: &str) -> RendezvousParameters {
        let config = BTreeMap::from([("rank".to_owned(), "0".to_owned())]);
        RendezvousParameters::new(backend, "localhost:0", "run", 1, 1, config).unwrap()
    }

    fn refused(registry: &BackendRegistry, backend: &str) -> String {
        match registry.create(&parameters(backend)) {
            Ok(_) => panic!("{backend} was made"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn built_in_and_unknown_backends() {
        let registry = BackendRegistry::with_defaults();
        let backend = registry.create(&parameters("static")).unwrap();
        assert_eq!(backend.name(), "static");
        assert_eq!(
            refused(&registry, "zeus"),
            "The rendezvous backend 'zeus' is not registered. Did you forget to call `register`?"
        );
    }

    #[test]
    fn a_name_has_one_constructor() {
        let mut registry = BackendRegistry::with_defaults();
        let constructor: BackendConstructor =
            Arc::new(|given| Ok(Box::new(StaticRendezvous::from_parameters(given)?)));
        assert!(registry.register("", Arc::clone(&constructor)).is_err());
        assert!(
            registry
                .register("static", Arc::clone(&constructor))
                .is_err()
        );
        registry.register("mine", Arc::clone(&constructor)).unwrap();
        registry.register("mine", constructor).unwrap();
        assert_eq!(
            refused(&registry, "mine"),
            "The rendezvous backend 'static' does not match the requested backend 'mine'."
        );
    }
}
