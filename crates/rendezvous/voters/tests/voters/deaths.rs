//! Random deaths and cuts in a group that agents may join.

use std::time::Duration;

use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::{Rule, Settings};

use crate::world::{Doom, Moment, World};

/// Number of steps of a plan.
const STEPS: u32 = 40;

/// Runs a random plan for agents in a group that they may join.
///
/// Each agent has the index of its endpoint. Processes are killed, also between two of their
/// outputs, and restart with their records. Machines are lost if the seed is odd. Networks are cut.
pub(crate) fn run(seed: u64, rules: Rules<Rule>) {
    let loses_machines = seed % 2 == 1;
    let mut random = fastrand::Rng::with_seed(seed);
    let agents = random.usize(1..7);
    let most = [1, 3, 5][random.usize(0..3)];
    let mut world = World::open_with(agents, most, seed, rules);
    world.settings = Settings::new(1, agents as u32);
    world.settings.last_call_timeout = Duration::from_millis(50);
    let mut plan = Plan {
        loses_machines,
        dead: Vec::new(),
        ending: Vec::new(),
        random,
        world,
    };
    let mut attempt = vec![0; agents];
    for _ in 0..STEPS {
        plan.end_some();
        plan.fault(agents);
        let (world, random) = (&mut plan.world, &mut plan.random);
        for index in world.coordinators() {
            let agent = random.usize(0..agents);
            if !plan.dead.contains(&agent) {
                attempt[agent] += 1;
                world.join(index, agent as u32, attempt[agent]);
            }
        }
        world.pass(Duration::from_millis(random.u64(1..400)));
        plan.bury();
    }
    plan.world.spare();
    plan.world.heal();
    for index in std::mem::take(&mut plan.ending) {
        plan.die(index, true);
    }
    let (mut world, dead) = (plan.world, plan.dead);
    dead.into_iter().for_each(|index| world.start_agent(index));
    world.pass(Duration::from_secs(12));
    // Announce another round.
    for index in world.coordinators() {
        for (agent, attempt) in attempt.iter().enumerate() {
            world.join(index, agent as u32, attempt + 1);
        }
    }
    world.pass(Duration::from_secs(1));
    assert!(
        world.coordinators().len() < 2,
        "seed {seed}: {}",
        world.story()
    );
    // A lost machine may take the only memory of a group with it.
    if !loses_machines {
        assert!(
            world.coordinator().is_some(),
            "seed {seed}: {}",
            world.story()
        );
    }
}

struct Plan {
    loses_machines: bool,
    /// Indexes of the processes that are dead.
    dead: Vec<usize>,
    /// Indexes of the processes that end by their own decision.
    ending: Vec<usize>,
    random: fastrand::Rng,
    world: World,
}

impl Plan {
    /// Kills a process, or loses it together with its machine.
    fn die(&mut self, index: usize, loses_machine: bool) {
        if self.dead.contains(&index) {
            return;
        }
        if loses_machine {
            self.world.lose(index);
        } else {
            self.world.kill_with_agent(index);
        }
        self.dead.push(index);
        self.bury();
    }

    /// Marks processes that a [`Doom`] killed as dead; some may be dead already.
    fn bury(&mut self) {
        for index in self.world.struck() {
            if !self.dead.contains(&index) {
                self.dead.push(index);
            }
        }
    }

    /// Kills some of the ending processes, some with their machines.
    fn end_some(&mut self) {
        for index in std::mem::take(&mut self.ending) {
            match self.random.u32(0..4) {
                0 => self.die(index, false),
                1 => self.die(index, true),
                _ => self.ending.push(index),
            }
        }
    }

    /// Kills a process between two of its outputs, and perhaps others with it.
    fn doom(&mut self, index: usize, agents: usize) {
        let random = &mut self.random;
        let coordinator = self.world.coordinator();
        let (index, moment) = match coordinator.filter(|_| random.bool()) {
            Some(coordinator) => (coordinator, Moment::Announced(false)),
            None => (index, Moment::Output(random.u32(0..30))),
        };
        let is_alone = random.bool();
        let others = (0..agents).filter(|it| *it != index && !self.dead.contains(it));
        let others = others.filter(|_| !is_alone && random.u32(0..4) > 0);
        self.world.doom(Doom {
            endpoints: [index].into_iter().chain(others).collect(),
            moment,
            frames_arrive: random.bool(),
            loses_machine: self.loses_machines && random.bool(),
        });
    }

    fn fault(&mut self, agents: usize) {
        let index = self.random.usize(0..agents);
        let lives = !self.dead.contains(&index);
        match self.random.u32(0..11) {
            0 | 1 => {
                let loses = self.loses_machines && self.random.bool();
                self.die(index, loses);
            }
            2..=4 if !self.dead.is_empty() => {
                let dead = self.random.usize(0..self.dead.len());
                let index = self.dead.swap_remove(dead);
                self.world.start_agent(index);
            }
            5 => self.world.cut_off(&[index]),
            6 => self.world.heal(),
            7 if self.loses_machines && lives && !self.ending.contains(&index) => {
                self.world.end(index);
                self.ending.push(index);
            }
            8 | 9 if lives => {
                self.doom(index, agents);
            }
            // Some at the same time: either all with their machines or none.
            10 => {
                let loses = self.loses_machines && self.random.bool();
                for index in 0..agents {
                    if self.random.u32(0..3) > 0 {
                        self.die(index, loses);
                    }
                }
            }
            _ => {}
        }
    }
}
