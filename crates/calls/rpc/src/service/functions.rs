//! Functions that an agent offers, by method hash.
//!
//! `C` is the type of the context that a function gets beside its argument.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::payload::{Answer, Payload};

pub(crate) type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub(crate) type StartAsync<C> = Arc<dyn Fn(C, Payload) -> Running + Send + Sync>;

pub(crate) type RunBlocking<C> = Arc<dyn Fn(C, Payload) -> Answer + Send + Sync>;

/// Receives the result of a function, on any thread.
pub(crate) type Respond = Box<dyn FnOnce(Answer) + Send>;

/// Passes a call to a function that can answer it later, on any thread.
pub(crate) type HandOver<C> = Arc<dyn Fn(C, Payload, Respond) + Send + Sync>;

#[derive(Clone)]
pub(crate) enum MethodBody<C> {
    /// In steps, on threads that the function must not block.
    Async(StartAsync<C>),
    Blocking(RunBlocking<C>),
    /// Answered later, by any thread.
    Deferred(HandOver<C>),
}

/// Function that the agent offers to callers.
#[derive(Clone)]
pub(crate) struct Function<C> {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) body: MethodBody<C>,
}

/// Offered functions by method hash.
pub(crate) struct Functions<C>(pub(crate) BTreeMap<u64, Function<C>>);

impl<C> Functions<C> {
    pub(crate) fn find(&self, number: u64) -> Option<(&'static str, &MethodBody<C>)> {
        let function = self.0.get(&number)?;
        Some((function.name, &function.body))
    }

    /// Returns names of the application's functions, to suggest to a caller.
    pub(crate) fn listed(&self) -> Vec<String> {
        let functions = self.0.values();
        functions
            .filter(|function| !function.name.starts_with("rdzv."))
            .map(|function| match function.version {
                1 => function.name.to_owned(),
                version => format!("{}@{version}", function.name),
            })
            .take(100)
            .collect()
    }
}
