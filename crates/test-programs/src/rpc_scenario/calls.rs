//! Calls that commands describe.

use std::time::Duration;

use rdzv_rpc::{CallOptions, Method, RpcAgent, RpcError, RpcFuture, Timeout};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::offered::{
    COUNT, DOUBLE, DOUBLE_TEXT, FAIL, HALVE, HOLD, MEASURE, NOTE, NOTED, OPEN, REACHED, REPEAT,
    TRACE, TRIPLE, WAIT,
};
use super::pressure::{SWALLOW, piece};
use super::references::KEPT;

/// Description of one call.
#[derive(Deserialize)]
pub(crate) struct Call {
    to: To,
    method: String,
    #[serde(default)]
    argument: Value,
    /// Timeout in microseconds; the default is that of the agent.
    micros: Option<u64>,
    /// `true` for a call without a deadline.
    #[serde(default)]
    never: bool,
    /// `true` for a call that fails instead of waiting for credit.
    #[serde(default)]
    refuse: bool,
}

/// Callee of a call.
#[derive(Deserialize)]
#[serde(untagged)]
enum To {
    Name(String),
    Id(u32),
}

/// A call in flight, with a result of any type.
pub(crate) trait Outcome {
    fn wait(self: Box<Self>) -> Result<Value, RpcError>;
    fn is_done(&self) -> bool;
    fn cancel(&self);
}

impl<T: Serialize + Send + 'static> Outcome for RpcFuture<T> {
    fn wait(self: Box<Self>) -> Result<Value, RpcError> {
        (*self).wait().map(|value| json!(value))
    }

    fn is_done(&self) -> bool {
        Self::is_done(self)
    }

    fn cancel(&self) {
        Self::cancel(self);
    }
}

impl Call {
    /// Makes the call.
    pub(crate) fn begin(&self, agent: &RpcAgent) -> Box<dyn Outcome> {
        match self.method.as_str() {
            "double" => self.typed(agent, DOUBLE),
            "double text" => self.typed(agent, DOUBLE_TEXT),
            "halve" => self.typed(agent, HALVE),
            "triple" => self.typed(agent, TRIPLE),
            // The command has only the length of the text.
            "measure" => self.with(agent, MEASURE, &"x".repeat(self.argument())),
            "repeat" => self.typed(agent, REPEAT),
            "fail" => self.typed(agent, FAIL),
            "wait" => self.typed(agent, WAIT),
            "hold" => self.typed(agent, HOLD),
            "open" => self.typed(agent, OPEN),
            "count" => self.typed(agent, COUNT),
            "reached" => self.typed(agent, REACHED),
            "noted" => self.typed(agent, NOTED),
            "swallow" => self.with(agent, SWALLOW, &piece(self.argument())),
            "kept" => self.typed(agent, KEPT),
            "trace" => self.typed(agent, TRACE),
            other => panic!("there is no method {other}"),
        }
    }

    fn argument<T: DeserializeOwned>(&self) -> T {
        let argument = serde_json::from_value(self.argument.clone());
        argument.unwrap_or_else(|error| panic!("the argument of {}: {error}", self.method))
    }

    fn typed<Argument, Output>(
        &self,
        agent: &RpcAgent,
        method: Method<Argument, Output>,
    ) -> Box<dyn Outcome>
    where
        Argument: Serialize + DeserializeOwned,
        Output: Serialize + DeserializeOwned + Send + 'static,
    {
        self.with(agent, method, &self.argument())
    }

    fn with<Argument, Output>(
        &self,
        agent: &RpcAgent,
        method: Method<Argument, Output>,
        argument: &Argument,
    ) -> Box<dyn Outcome>
    where
        Argument: Serialize,
        Output: Serialize + DeserializeOwned + Send + 'static,
    {
        let timeout = match (self.micros, self.never) {
            (_, true) => Timeout::Never,
            (Some(micros), _) => Timeout::After(Duration::from_micros(micros)),
            (None, _) => Timeout::Default,
        };
        let mut options = CallOptions::new().timeout(timeout);
        if self.refuse {
            options = options.refuse_excess();
        }
        Box::new(match &self.to {
            To::Name(name) => agent.call_with(options, name, method, argument),
            To::Id(id) => agent.call_with(options, *id, method, argument),
        })
    }
}

/// Makes calls in a line, and one more outside of it for every ten.
/// Returns when all of them were answered.
pub(crate) fn lines(agent: &RpcAgent, to: &str, calls: u64) -> Result<Value, RpcError> {
    let line = CallOptions::new().line(7);
    let mut begun = Vec::new();
    for number in 0..calls {
        begun.push(agent.call_with(line, to, NOTE, &number));
        if number % 10 == 0 {
            begun.push(agent.call(to, COUNT, &()));
        }
    }
    begun.into_iter().try_for_each(RpcFuture::wait)?;
    Ok(Value::Null)
}
