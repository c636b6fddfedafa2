//! Random deaths and cuts.
//!
//! At every event, the world checks that a term has one coordinator and a round has one set of
//! members. In the end, a complete group has a coordinator again.

use std::time::Duration;

use rdzv_core::rules::Rules;

use crate::deaths;
use crate::world::World;

/// Number of seeds of the first test; the second one has five times as many.
const SEEDS: u64 = 100;

#[test]
fn whatever_dies_a_term_has_one_coordinator_and_a_round_one_set_of_members() {
    for seed in 0..SEEDS {
        let endpoints = if seed % 3 == 0 { 5 } else { 3 };
        run(seed, endpoints);
    }
}

fn run(seed: u64, endpoints: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(endpoints, seed);
    let mut dead: Vec<usize> = (0..endpoints).collect();
    let mut attempt = [0; 4];
    let mut ending: Vec<usize> = Vec::new();
    for _ in 0..40 {
        // A process that ends cleanly lives a little longer.
        ending.retain(|index| {
            let ends = random.bool();
            if ends && !dead.contains(index) {
                world.kill(*index);
                dead.push(*index);
            }
            !ends
        });
        match random.u32(0..8) {
            0 | 1 if dead.len() < endpoints => {
                let index = random.usize(0..endpoints);
                if !dead.contains(&index) {
                    world.kill(index);
                    dead.push(index);
                }
            }
            2..=4 if !dead.is_empty() => world.start(dead.swap_remove(random.usize(0..dead.len()))),
            5 => world.cut_off(&[random.usize(0..endpoints)]),
            6 => world.heal(),
            7 => {
                let index = random.usize(0..endpoints);
                if !dead.contains(&index) && !ending.contains(&index) {
                    world.end(index);
                    ending.push(index);
                }
            }
            _ => {}
        }
        // Agents join at every process that behaves like a coordinator.
        for index in world.coordinators() {
            let agent = random.usize(0..attempt.len());
            attempt[agent] += 1;
            world.join(index, agent as u32, attempt[agent]);
        }
        world.pass(Duration::from_millis(random.u64(1..400)));
    }
    world.heal();
    for index in ending.into_iter().filter(|index| !dead.contains(index)) {
        world.kill(index);
        world.start(index);
    }
    dead.into_iter().for_each(|index| world.start(index));
    world.pass(Duration::from_secs(6));
    assert!(world.coordinator().is_some(), "seed {seed}");
}

#[test]
fn whatever_dies_in_a_group_that_agents_may_join_a_round_has_one_set_of_members() {
    for seed in 0..SEEDS * 5 {
        deaths::run(seed, Rules::default());
    }
}
