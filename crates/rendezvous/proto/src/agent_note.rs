//! Record of an agent, which survives the agent's process.
//!
//! After an agent has died, the process that restarts it reads the record, and so does the next
//! agent.
//!
//! ```text
//!   content   restarts: u32, flags: u8 (1 ended, 2 was killed), restarts used: u32, deaths: u32,
//!             status: i32, short: u32, pid: u32, time of the death: i64 (Unix, in µs),
//!             lease until ms: u64,
//!             instances: u32 count of u64, goodput: u32 count of u64,
//!             highest step + 1: u64 (0: none)
//! ```

use rdzv_core::time::Wall;

use crate::field::write;
use crate::slot::{self, Bytes};

/// Maximum number of instances in a record; older ones are dropped.
const MOST_INSTANCES: usize = 16;

/// Record of the agents that one process has started in sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentNote {
    /// Maximum number of consecutive short lives with a restart after each.
    ///
    /// It is 0 until the agent reports it.
    pub restarts: u32,
    /// `true` if the agent ended its run in order: no kill, no panic.
    pub has_ended: bool,
    /// Number of restarts of the workers that the agent has used.
    pub restarts_used: u32,
    /// Number of agents that died and were restarted.
    pub deaths: u32,
    /// Last death of an agent that was restarted; `None` if there was none.
    pub last_death: Option<Death>,
    /// End of the workers' lease, in milliseconds on the lease clock.
    ///
    /// It is 0 without a lease.
    pub lease_end: u64,
    /// Instances under which the agents have participated, the newest last.
    pub instances: Vec<u64>,
    /// Time of the node by class, as the agent encodes it.
    pub goodput: Vec<u64>,
    /// Highest step that a worker has reported.
    pub most_step: Option<u64>,
}

/// Death of an agent that was restarted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Death {
    /// Wait status of the agent's process.
    pub status: i32,
    /// Number of consecutive short lives, including this one.
    pub short: u32,
    /// Process id of the agent.
    pub pid: u32,
    /// Time of the death.
    pub at: Wall,
}

impl AgentNote {
    /// Adds the instance under which an agent participates.
    ///
    /// If the record is full, the new instance replaces the oldest.
    pub fn add_instance(&mut self, instance: u64) {
        if self.instances.len() == MOST_INSTANCES {
            self.instances.remove(0);
        }
        self.instances.push(instance);
    }

    /// Returns the bytes of a slot that holds this record.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        let mut content = Vec::new();
        let flags = slot::flags([self.has_ended, self.last_death.is_some()]);
        write(&mut content, &[&self.restarts, &flags]);
        write(&mut content, &[&self.restarts_used, &self.deaths]);
        let death = self.last_death.unwrap_or_default();
        write(&mut content, &[&death.status, &death.short, &death.pid]);
        write(&mut content, &[&death.at.unix_micros(), &self.lease_end]);
        slot::write_numbers(&self.instances, &mut content);
        slot::write_numbers(&self.goodput, &mut content);
        let step = self.most_step.map_or(0, |step| step.saturating_add(1));
        write(&mut content, &[&step]);
        slot::encode(sequence, &content)
    }

    /// Returns the record in the newest complete slot, and its sequence number.
    ///
    /// `None` if no slot is complete.
    pub fn newest(slots: [&[u8]; 2]) -> Option<(u64, Self)> {
        slot::newest(slots, Self::read)
    }

    fn read(mut bytes: Bytes<'_>) -> Option<Self> {
        let (restarts, flags) = (bytes.u32()?, bytes.u8()?);
        let [has_ended, was_killed] = slot::read_flags(flags);
        let (restarts_used, deaths) = (bytes.u32()?, bytes.u32()?);
        let death = Death {
            status: bytes.u32()?.cast_signed(),
            short: bytes.u32()?,
            pid: bytes.u32()?,
            at: Wall::from_unix_micros(bytes.u64()?.cast_signed()),
        };
        Some(Self {
            restarts,
            has_ended,
            restarts_used,
            deaths,
            last_death: was_killed.then_some(death),
            lease_end: bytes.u64()?,
            instances: bytes.numbers()?,
            goodput: bytes.numbers()?,
            most_step: bytes.u64()?.checked_sub(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_as_it_was_written_and_no_beginning_of_it_does() {
        let mut note = AgentNote {
            restarts: 3,
            restarts_used: 1,
            deaths: 2,
            lease_end: 1 << 40,
            last_death: Some(Death {
                status: 9,
                short: 1,
                pid: 41,
                at: Wall::from_unix_micros(1 << 50),
            }),
            goodput: vec![1, 1 << 40],
            most_step: Some(0),
            ..AgentNote::default()
        };
        for instance in 0..20 {
            note.add_instance(instance);
        }
        assert_eq!(note.instances, (4..20).collect::<Vec<_>>());
        let before = AgentNote {
            has_ended: true,
            ..AgentNote::default()
        };
        let (old, new) = (before.encode(1), note.encode(2));
        for written in 0..new.len() {
            assert_eq!(
                AgentNote::newest([&new[..written], &old]),
                Some((1, before.clone()))
            );
        }
        assert_eq!(AgentNote::newest([&new, &old]), Some((2, note)));
        assert_eq!(AgentNote::newest([&[], &[]]), None);
    }
}
