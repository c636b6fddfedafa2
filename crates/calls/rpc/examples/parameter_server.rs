//! A parameter server: trainers with parts of the data fit one line to it.
//!
//! ```text
//! cargo build --examples
//! rdzv run --standalone --nproc-per-node 4 --no-python target/debug/examples/parameter_server
//! ```
//!
//! Rank 0 holds the weights. In every step, each trainer pushes its gradient and receives the
//! weights that result from all gradients of the step. The called function is async, so it occupies
//! no thread while it waits for the other trainers, regardless of their number.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_rpc::{Method, Methods, RpcAgent, RpcError, Tensor};
use tokio::sync::watch;

/// Adds the gradient of a trainer and returns the weights after the step.
const PUSH: Method<Tensor, Tensor> = Method::new("server.push");

const SERVER: &str = "server";
const STEPS: usize = 100;
const POINTS: usize = 100;
const RATE: f32 = 0.5;

fn main() -> anyhow::Result<()> {
    let met = rendezvous("env://", None, None, UrlOptions::default())?.join()?;
    let trainers = met.world_size as usize - 1;
    ensure!(
        trainers > 0,
        "a server alone has nothing to do: start more workers"
    );
    let server = Arc::new(Server::new(trainers)?);
    let (name, methods) = match met.rank.0 {
        0 => (SERVER.to_owned(), server.methods()),
        rank => (format!("trainer-{rank}"), Methods::new()),
    };
    let agent = RpcAgent::builder(&name)
        .rank(met.rank.0)
        .world_size(met.world_size)
        .store(Arc::from(met.store))
        .methods(methods)
        .connect()?;
    if met.rank.0 > 0 {
        let [slope, height] = train(&agent, (met.rank.0 as usize - 1, trainers))?;
        ensure!((slope - 3.0).abs() < 1e-3 && (height + 2.0).abs() < 1e-3);
        println!("{name}: slope {slope:.3}, height {height:.3}");
    }
    // All workers wait for each other here, so the server runs until the last trainer is done.
    agent.shutdown(Duration::from_secs(60))?;
    if met.rank.0 == 0 {
        ensure!(server.steps() == STEPS);
        println!("{name}: {STEPS} steps of {trainers} trainers");
    }
    Ok(())
}

/// The weights, and the gradients of the current step.
struct Server {
    trainers: usize,
    step: Mutex<Step>,
    weights: watch::Sender<Tensor>,
}

#[derive(Default)]
struct Step {
    done: usize,
    pushed: usize,
    sum: [f32; 2],
}

impl Server {
    fn new(trainers: usize) -> Result<Self, RpcError> {
        Ok(Self {
            trainers,
            step: Mutex::default(),
            weights: watch::Sender::new(Tensor::from_vec(vec![0.0_f32; 2], [2])?),
        })
    }

    fn methods(self: &Arc<Self>) -> Methods {
        let server = Arc::clone(self);
        Methods::new().with(PUSH, move |gradient: Tensor| {
            let server = Arc::clone(&server);
            async move { server.push(&gradient).await }
        })
    }

    async fn push(&self, gradient: &Tensor) -> Result<Tensor, RpcError> {
        // Subscribe before adding the gradient, so that the next change is the one of this step.
        let mut weights = self.weights.subscribe();
        self.count(gradient)?;
        weights
            .changed()
            .await
            .expect("the server keeps the sender");
        let weights = weights.borrow().clone();
        Ok(weights)
    }

    /// Adds a gradient. The last gradient of a step updates the weights.
    fn count(&self, gradient: &Tensor) -> Result<(), RpcError> {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, gradient) in step.sum.iter_mut().zip(gradient.as_slice::<f32>()?.iter()) {
            *sum += gradient;
        }
        step.pushed += 1;
        if step.pushed < self.trainers {
            return Ok(());
        }
        let mean = std::mem::take(&mut step.sum).map(|sum| sum / self.trainers as f32);
        step.pushed = 0;
        step.done += 1;
        let mut weights = self.weights.borrow().as_slice::<f32>()?.into_owned();
        for (weight, gradient) in weights.iter_mut().zip(mean) {
            *weight -= RATE * gradient;
        }
        self.weights.send_replace(Tensor::from_vec(weights, [2])?);
        Ok(())
    }

    fn steps(&self) -> usize {
        self.step
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .done
    }
}

/// Fits the line to every `of`-th point, starting with point `first`.
fn train(agent: &RpcAgent, (first, of): (usize, usize)) -> anyhow::Result<[f32; 2]> {
    let mine: Vec<(f32, f32)> = (first..POINTS).step_by(of).map(point).collect();
    let mut weights = [0.0_f32; 2];
    for _ in 0..STEPS {
        let mut gradient = [0.0_f32; 2];
        for (x, y) in &mine {
            let error = weights[0] * x + weights[1] - y;
            gradient[0] += 2.0 * error * x / mine.len() as f32;
            gradient[1] += 2.0 * error / mine.len() as f32;
        }
        let gradient = Tensor::from_vec(gradient.to_vec(), [2])?;
        let next = agent.call(SERVER, PUSH, &gradient).wait()?;
        weights.copy_from_slice(&next.as_slice::<f32>()?);
    }
    Ok(weights)
}

/// Returns a point on the line that the trainers have to find.
fn point(number: usize) -> (f32, f32) {
    let x = number as f32 / POINTS as f32 * 2.0 - 1.0;
    (x, 3.0 * x - 2.0)
}
