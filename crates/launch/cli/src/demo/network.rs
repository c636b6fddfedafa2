//! The model of the demo: a network with one hidden layer.
//!
//! The network separates the points of two half-moons. All functions depend only on their
//! arguments and have a fixed order of operations, so a rank computes the same bits in each run.

use std::f32::consts::PI;

use serde::{Deserialize, Serialize};

/// Width of the hidden layer.
const HIDDEN: usize = 16;
/// Number of parameters of the network.
///
/// Each hidden unit has two input weights, a bias and an output weight. The output has a bias.
const PARAMETERS: usize = HIDDEN * 4 + 1;

const LEARNING_RATE: f32 = 0.3;
const MOMENTUM: f32 = 0.9;

/// Example: its coordinates, and the moon to which it belongs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    at: [f32; 2],
    upper: bool,
}

/// Returns the examples of a rank.
///
/// They are every `world_size`th of `count` points around two half-moons.
pub(super) fn shard(seed: u64, count: usize, rank: u32, world_size: u32) -> Vec<Point> {
    let mut random = fastrand::Rng::with_seed(seed);
    let all = (0..count).map(|index| {
        let upper = index % 2 == 0;
        let angle = random.f32() * PI;
        let mut noise = || (random.f32() - 0.5) * 0.3;
        let (x, y) = if upper {
            (angle.cos(), angle.sin())
        } else {
            (1.0 - angle.cos(), 0.5 - angle.sin())
        };
        let at = [x + noise() - 0.5, y + noise() - 0.25];
        Point { at, upper }
    });
    all.skip(rank as usize)
        .step_by(world_size as usize)
        .collect()
}

/// State of a training run, which is the content of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Training {
    pub(super) step: u32,
    pub(super) parameters: Vec<f32>,
    /// Momentum of the optimizer, from earlier gradients.
    pub(super) velocity: Vec<f32>,
}

/// Result of one pass over examples, as sums that can be added over ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pass {
    /// Gradient, loss, number of correctly classified points, number of points.
    pub(super) sums: Vec<f32>,
}

impl Pass {
    pub(super) fn loss(&self) -> f32 {
        self.sums[PARAMETERS] / self.points()
    }

    pub(super) fn accuracy(&self) -> f32 {
        self.sums[PARAMETERS + 1] / self.points()
    }

    fn points(&self) -> f32 {
        self.sums[PARAMETERS + 2]
    }
}

impl Training {
    /// Creates an untrained network.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            step: 0,
            parameters: (0..PARAMETERS).map(|_| random.f32() - 0.5).collect(),
            velocity: vec![0.0; PARAMETERS],
        }
    }

    /// Computes the forward and backward pass over the points, with logistic loss.
    pub(super) fn pass(&self, points: &[Point]) -> Pass {
        let (inner, outer) = self.parameters.split_at(HIDDEN * 3);
        let mut sums = vec![0.0; PARAMETERS + 3];
        let mut hidden = [0.0; HIDDEN];
        for Point { at, upper } in points {
            let mut score = outer[HIDDEN];
            for (unit, hidden) in hidden.iter_mut().enumerate() {
                let weights = &inner[unit * 3..][..3];
                *hidden = (weights[0] * at[0] + weights[1] * at[1] + weights[2]).tanh();
                score += outer[unit] * *hidden;
            }
            let target = f32::from(u8::from(*upper));
            let probability = 1.0 / (1.0 + (-score).exp());
            let error = probability - target;
            let (inner_sums, rest) = sums.split_at_mut(HIDDEN * 3);
            for (unit, hidden) in hidden.iter().enumerate() {
                let behind = error * outer[unit] * (1.0 - hidden * hidden);
                let weights = &mut inner_sums[unit * 3..][..3];
                weights[0] += behind * at[0];
                weights[1] += behind * at[1];
                weights[2] += behind;
                rest[unit] += error * hidden;
            }
            rest[HIDDEN] += error;
            // ln(1 + e^-|score|) does not overflow.
            rest[HIDDEN + 1] += (-score.abs()).exp().ln_1p() + score.max(0.0) - target * score;
            rest[HIDDEN + 2] += f32::from(u8::from((score > 0.0) == *upper));
            rest[HIDDEN + 3] += 1.0;
        }
        Pass { sums }
    }

    /// Takes one step of gradient descent with momentum; `pass` covers all points.
    pub(super) fn advance(&mut self, pass: &Pass) {
        let points = pass.points();
        let state = self.parameters.iter_mut().zip(&mut self.velocity);
        for ((parameter, velocity), sum) in state.zip(&pass.sums) {
            *velocity = MOMENTUM * *velocity + sum / points;
            *parameter -= LEARNING_RATE * *velocity;
        }
        self.step += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_a_partition_of_the_points() {
        let all = shard(1, 101, 0, 1);
        assert_eq!(all.len(), 101);
        for (index, point) in all.iter().enumerate() {
            let rank = u32::try_from(index % 3).unwrap();
            assert_eq!(shard(1, 101, rank, 3)[index / 3], *point);
        }
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let points = shard(3, 64, 0, 1);
        let training = Training::new(5);
        let pass = training.pass(&points);
        for index in 0..PARAMETERS {
            let loss = |change: f32| {
                let mut moved = training.clone();
                moved.parameters[index] += change;
                f64::from(moved.pass(&points).loss())
            };
            let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
            let gradient = f64::from(pass.sums[index] / pass.points());
            assert!(
                (slope - gradient).abs() < 1e-3,
                "{index}: {slope} {gradient}"
            );
        }
    }

    #[test]
    fn it_learns() {
        let points = shard(1, 1000, 0, 1);
        let mut training = Training::new(1);
        let before = training.pass(&points);
        for _ in 0..120 {
            let pass = training.pass(&points);
            training.advance(&pass);
        }
        let after = training.pass(&points);
        assert!(
            after.loss() < before.loss() / 5.0,
            "{} {}",
            before.loss(),
            after.loss()
        );
        assert!(after.accuracy() > 0.97, "{}", after.accuracy());
    }
}
