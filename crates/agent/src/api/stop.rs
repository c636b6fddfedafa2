//! Telling an agent to stop from another thread.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::UnboundedSender;

use crate::meeting::Answer;

/// Tells the agent that it was taken from to stop; may be sent to other threads.
///
/// It means what a signal to the process means: the first wish grants the workers the whole grace,
/// the second a quarter of it, any further one nothing.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<Mutex<Wishes>>);

#[derive(Debug, Default)]
struct Wishes {
    /// Those from before the run.
    early: Vec<i32>,
    agent: Option<UnboundedSender<Answer>>,
}

impl StopHandle {
    /// Stops the workers with this signal, and the run with [`RunError::Signalled`]. Before a run
    /// it ends the next one at its beginning, after a run nothing happens.
    ///
    /// [`RunError::Signalled`]: super::RunError::Signalled
    pub fn stop(&self, signal: i32) {
        let mut wishes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &wishes.agent {
            // The agent may have ended; then there is nothing to stop.
            Some(agent) => drop(agent.send(Answer::Told(signal))),
            None => wishes.early.push(signal),
        }
    }

    /// From here on wishes go to this agent.
    pub(crate) fn attach(&self, agent: &UnboundedSender<Answer>) {
        let mut wishes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in std::mem::take(&mut wishes.early) {
            let _ = agent.send(Answer::Told(signal));
        }
        wishes.agent = Some(agent.clone());
    }
}
