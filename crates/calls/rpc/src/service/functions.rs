//! The functions that an agent offers, by number.
//!
//! `C` is what a function gets beside its argument.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::payload::{Answer, Payload};

/// A call of an async function in flight.
pub(crate) type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Starts an async function.
pub(crate) type StartAsync<C> = Arc<dyn Fn(C, Payload) -> Running + Send + Sync>;

/// Runs a function that blocks.
pub(crate) type RunBlocking<C> = Arc<dyn Fn(C, Payload) -> Answer + Send + Sync>;

/// Takes the answer of a function, on any thread.
pub(crate) type Respond = Box<dyn FnOnce(Answer) + Send>;

/// Hands a call over to the thread that answers it.
pub(crate) type HandOver<C> = Arc<dyn Fn(C, Payload, Respond) + Send + Sync>;

/// The way in which a function is run.
#[derive(Clone)]
pub(crate) enum MethodBody<C> {
    /// In steps, on threads that it must not hold up.
    Async(StartAsync<C>),
    /// On a thread of its own.
    Blocking(RunBlocking<C>),
    /// On threads that are not the agent's.
    Deferred(HandOver<C>),
}

/// A function that is offered.
#[derive(Clone)]
pub(crate) struct Function<C> {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) body: MethodBody<C>,
}

/// Functions by their numbers.
pub(crate) struct Functions<C>(pub(crate) BTreeMap<u64, Function<C>>);

impl<C> Functions<C> {
    pub(crate) fn find(&self, number: u64) -> Option<(&'static str, &MethodBody<C>)> {
        let function = self.0.get(&number)?;
        Some((function.name, &function.body))
    }

    /// The names for a caller that asked for one that is not there.
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
