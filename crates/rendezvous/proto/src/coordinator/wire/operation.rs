//! What an agent asks for.

use std::time::Duration;

use rdzv_store_proto::wire::request::{self, rendezvous as opcode};

use super::fields::{Fields, text};
use super::{VERSION, WireError};
use crate::field::write;
use crate::{FencePolicy, NodeDesc, Settings, silence};

/// An agent that reattaches and has been in no round, holds one, or has left it; or that leaves the run.
const NONE: u8 = 0;
const HOLDS: u8 = 1;
const LEFT: u8 = 2;
const LEAVES: u8 = 3;

/// Choices of a fence.
const OFF: u8 = 1;
const AUTO: u8 = 2;

/// In place of a rank.
const NOBODY: u32 = u32::MAX;

/// What an agent asks its host for.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// To take part in the next round; answered with `Formed` or `Refused` in due time. Whoever is
    /// in a round leaves it with this.
    Join(Box<Join>),
    /// Not to take part any more; answered with `Left`.
    Leave,
    /// To end the run for everybody; answered with `Closed`.
    Close {
        /// Which run.
        run: String,
    },
    /// Says that the agent lives; answered with `Alive`.
    Heartbeat,
    /// Says that the agent has failed for good.
    Failed {
        /// Why.
        reason: String,
    },
    /// From rank 0: where the workers of a round meet.
    Master {
        /// The round.
        round: u64,
        /// The host.
        addr: String,
        /// The port.
        port: u16,
    },
    /// Asks about a run; answered with `Status`.
    Status {
        /// Which run.
        run: String,
    },
    /// The first on a connection after one that broke; answered with `Attached`, and with what follows from
    /// where the agent stands.
    Reattach(Box<Reattach>),
    /// Says that all workers of the agent have succeeded; answered with `AllSucceeded` when those of all
    /// participants have.
    Succeeded {
        /// The round.
        round: u64,
    },
    /// Says that the agent is about to hang up, though it lives, and that its workers may run. Without this, the end of the
    /// stream of an agent that says [where it is from](Join::from) is the end of its process.
    Detach,
    /// Says, to a coordinator that [takes voters](super::Authority::takes_voters), that the agent looks for it at the voters
    /// of which it is told.
    Candidate {
        /// The agent can be a voter, and is none.
        willing: bool,
    },
    /// Asks whether the coordinator has a majority, and keeps the agent; answered with `Backed` if so.
    Lease {
        /// The agent's number of the question.
        number: u64,
        /// The lease that the agent has already.
        standing: Standing,
    },
}

/// An agent's lease when it sends [`Operation::Lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// None yet, or one that is over.
    Asks,
    /// A valid lease.
    Holds,
    /// None: the coordinator has turned the fence off. This is no question.
    Lifted,
}

/// Where an agent stands that goes on over a new connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Reattach {
    /// The coordinator that it obeyed last.
    pub last: LastCoordinator,
    /// The agent. Its last join, repeated, if it holds no round.
    pub join: Join,
    /// The round that it is in; `None` if it waits for one.
    pub holds: Option<HeldRound>,
    /// The last round that it was in, if it waits for the next one.
    pub left: Option<HeldRound>,
    /// It leaves the run, as it has said over a connection that broke before the answer came; answered with `Left`. No round is
    /// told.
    pub leaves: bool,
}

/// The coordinator that an agent obeyed last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastCoordinator {
    /// Its cluster.
    pub cluster: u64,
    /// Its number in that.
    pub epoch: u32,
    /// The numeric address and port at which the agent has reached it (`10.0.0.1:29400`); empty if it does not know.
    pub address: String,
}

/// A round, as one of its participants knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRound {
    /// Its number.
    pub round: u64,
    /// The agent's rank.
    pub rank: u32,
    /// Where the workers meet, if it knows: host and port.
    pub master: Option<(String, u16)>,
    /// Whether all workers of the agent have succeeded.
    pub succeeded: bool,
    /// The number of its participants; 0 if the agent does not know.
    pub size: u32,
    /// The rank of the participant whose process was the coordinator, if one was.
    pub host: Option<u32>,
}

/// Who joins, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    /// Drawn by the agent once; tells its second connection from another agent with the same node.
    pub instance: u64,
    /// The run.
    pub run: String,
    /// The agent.
    pub node: NodeDesc,
    /// What it was told about the run. Only what the coordinator needs is on the wire; the rest are the
    /// defaults on the other side.
    pub settings: Settings,
    /// The role of its workers.
    pub role: String,
    /// The number of workers that it starts. 0: it does not know yet, so the agents of the round tell one another in its store.
    pub local_world_size: u32,
    /// Their program; agents of version 0.1 do not say it.
    pub program: Option<Program>,
    /// The number of joins that the agent has made, this one included. Agents that do not say it, or no program, cannot
    /// reattach.
    pub attempt: Option<u32>,
    /// The instances of agents that have certainly ended, and that this one was started in place of; at most 255.
    pub replaces: Vec<u64>,
    /// The numeric address and port of the agent's end of this connection (`10.0.0.2:51000`), if it says [`Operation::Detach`]
    /// before it hangs up, and its workers end with its process. A connection that comes from there is not one of a
    /// proxy. Only of agents that can reattach.
    pub from: Option<String>,
}

/// The program of an agent. Two agents run the same if the fingerprints are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name, for people.
    pub name: String,
    /// A digest of the script, or of the name where there is no script to be read.
    pub fingerprint: u64,
    /// Whether the run was given an id. Without one, only agents that run the same belong together.
    pub has_run_id: bool,
}

impl Program {
    /// A program that is told from others by these bytes.
    pub fn new(name: impl Into<String>, bytes: &[u8], has_run_id: bool) -> Self {
        // FNV-1a, which is the same on every machine and in every release.
        let fingerprint = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            name: name.into(),
            fingerprint,
            has_run_id,
        }
    }
}

impl Operation {
    /// The opcode that it is sent under.
    pub fn opcode(&self) -> u8 {
        match self {
            Self::Join(_) => opcode::JOIN,
            Self::Leave => opcode::LEAVE,
            Self::Close { .. } => opcode::CLOSE,
            Self::Heartbeat => opcode::HEARTBEAT,
            Self::Failed { .. } => opcode::FAILED,
            Self::Master { .. } => opcode::MASTER,
            Self::Status { .. } => opcode::STATUS,
            Self::Reattach(_) => opcode::REATTACH,
            Self::Succeeded { .. } => opcode::SUCCEEDED,
            Self::Detach => opcode::DETACH,
            Self::Lease { .. } => opcode::LEASE,
            Self::Candidate { .. } => opcode::CANDIDATE,
        }
    }

    /// Adds the whole request, opcode and length included.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut fields = Vec::new();
        self.write_fields(&mut fields);
        request::extension(out, self.opcode(), &fields);
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        match self {
            Self::Join(join) => join.write(out),
            Self::Leave | Self::Heartbeat | Self::Detach => {}
            Self::Close { run } | Self::Status { run } => text(out, run),
            Self::Failed { reason } => text(out, reason),
            Self::Master { round, addr, port } => write(out, &[round, addr, port]),
            Self::Reattach(reattach) => reattach.write(out),
            Self::Candidate { willing } => write(out, &[willing]),
            Self::Succeeded { round } => write(out, &[round]),
            Self::Lease { number, standing } => {
                let standing = match standing {
                    Standing::Asks => None,
                    Standing::Holds => Some(1_u8),
                    Standing::Lifted => Some(2),
                };
                write(out, &[number, &standing]);
            }
        }
    }

    /// Reads the fields that came with an opcode.
    pub fn read(opcode: u8, payload: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields(payload);
        Ok(match opcode {
            opcode::JOIN => Self::Join(Box::new(Join::read(&mut fields)?)),
            opcode::LEAVE => Self::Leave,
            opcode::CLOSE => Self::Close {
                run: fields.text("the run id")?.to_owned(),
            },
            opcode::HEARTBEAT => Self::Heartbeat,
            opcode::FAILED => Self::Failed {
                reason: fields.text("the reason")?.to_owned(),
            },
            opcode::MASTER => Self::Master {
                round: fields.u64("the round")?,
                addr: fields.host("the master address")?,
                port: fields.u16("the master port")?,
            },
            opcode::STATUS => Self::Status {
                run: fields.text("the run id")?.to_owned(),
            },
            opcode::REATTACH => Self::Reattach(Box::new(Reattach::read(&mut fields)?)),
            opcode::SUCCEEDED => Self::Succeeded {
                round: fields.u64("the round")?,
            },
            opcode::DETACH => Self::Detach,
            opcode::CANDIDATE => Self::Candidate {
                willing: fields.u8("whether the agent can be a voter")? != 0,
            },
            opcode::LEASE => Self::Lease {
                number: fields.u64("the number of the question")?,
                standing: match fields.0 {
                    [1, ..] => Standing::Holds,
                    [2, ..] => Standing::Lifted,
                    _ => Standing::Asks,
                },
            },
            other => return Err(WireError::Unknown(other)),
        })
    }
}

impl Reattach {
    fn write(&self, out: &mut Vec<u8>) {
        let last = &self.last;
        write(out, &[&last.cluster, &last.epoch, &last.address]);
        let (standing, round) = match (&self.holds, &self.left) {
            _ if self.leaves => (LEAVES, None),
            (Some(held), _) => (HOLDS, Some(held)),
            (None, Some(left)) => (LEFT, Some(left)),
            (None, None) => (NONE, None),
        };
        out.push(standing);
        if let Some(round) = round {
            round.write(out);
        }
        self.join.write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        let last = LastCoordinator {
            cluster: fields.u64("the last coordinator")?,
            epoch: fields.u32("the last coordinator")?,
            address: fields.host("the last coordinator")?,
        };
        let standing = fields.u8("whether it holds a round")?;
        let round = match standing {
            NONE | LEAVES => None,
            _ => Some(HeldRound::read(fields)?),
        };
        let (holds, left) = match standing {
            LEFT => (None, round),
            _ => (round, None),
        };
        Ok(Self {
            last,
            join: Join::read(fields)?,
            holds,
            left,
            leaves: standing == LEAVES,
        })
    }
}

impl HeldRound {
    fn write(&self, out: &mut Vec<u8>) {
        let host = self.host.unwrap_or(NOBODY);
        write(out, &[&self.round, &self.rank, &self.size, &host]);
        let (addr, port) = self.master.clone().unwrap_or_default();
        write(out, &[&self.succeeded, &addr, &port]);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            round: fields.u64("the round")?,
            rank: fields.u32("the rank")?,
            size: fields.u32("the size of the round")?,
            host: Some(fields.u32("the host")?).filter(|rank| *rank != NOBODY),
            succeeded: fields.u8("whether it has succeeded")? != 0,
            master: {
                let addr = fields.host("the master address")?;
                let port = fields.u16("the master port")?;
                (!addr.is_empty()).then_some((addr, port))
            },
        })
    }
}

impl Join {
    /// The join of an agent that starts no workers, with no more than each version sends.
    pub fn new(instance: u64, run: &str, node: NodeDesc, settings: Settings) -> Self {
        Self {
            instance,
            run: run.to_owned(),
            node,
            settings,
            role: String::new(),
            local_world_size: 0,
            program: None,
            attempt: None,
            replaces: Vec::new(),
            from: None,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let (node, settings) = (&self.node, &self.settings);
        let (replaces, from) = (&self.replaces, &self.from);
        write(out, &[&VERSION, &self.instance, &self.run, &node.addr]);
        let (pid, local_id) = (node.pid.cast_unsigned(), node.local_id.cast_unsigned());
        write(out, &[&pid, &local_id]);
        write(out, &[&settings.min_nodes, &settings.max_nodes]);
        write(out, &[&settings.join_timeout, &settings.last_call_timeout]);
        write(out, &[&settings.keep_alive_interval]);
        write(out, &[&settings.keep_alive_max_attempt]);
        write(out, &[&self.role, &self.local_world_size]);
        if let Some(program) = &self.program {
            write(out, &[&program.name, &program.fingerprint]);
            write(out, &[&program.has_run_id]);
            if let Some(attempt) = &self.attempt {
                write(out, &[attempt]);
                let replaces = &replaces[..replaces.len().min(usize::from(u8::MAX))];
                let is_said = settings.fence != FencePolicy::Unsaid;
                let is_usual = settings.node_timeout == silence::NODE_TIMEOUT;
                let has_more = is_said || !is_usual || from.is_some();
                if !replaces.is_empty() || has_more {
                    out.push(replaces.len() as u8);
                }
                replaces.iter().for_each(|instance| write(out, &[instance]));
                if has_more {
                    let timeout = settings.node_timeout.as_millis();
                    let timeout = u32::try_from(timeout).unwrap_or(u32::MAX);
                    // The time of a fence that agents of earlier versions always had.
                    write(out, &[&0_u32, &timeout]);
                }
                if from.is_some() || is_said {
                    text(out, from.as_deref().unwrap_or_default());
                }
                match settings.fence {
                    FencePolicy::Unsaid => {}
                    FencePolicy::Off => out.push(OFF),
                    FencePolicy::Auto => out.push(AUTO),
                }
            }
        }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        let version = fields.u8("the version")?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let instance = fields.u64("the instance")?;
        let run = fields.text("the run id")?;
        let node = NodeDesc {
            addr: fields.host("the node's address")?,
            pid: fields.u64("the node's process id")?.cast_signed(),
            local_id: fields.u64("the node's local id")?.cast_signed(),
        };
        let (min_nodes, max_nodes) = (fields.u32("the settings")?, fields.u32("the settings")?);
        let mut duration = || fields.u64("the settings").map(Duration::from_millis);
        let settings = Settings {
            join_timeout: duration()?,
            last_call_timeout: duration()?,
            keep_alive_interval: duration()?,
            keep_alive_max_attempt: fields.u32("the settings")?,
            ..Settings::new(min_nodes, max_nodes)
        };
        let mut join = Self {
            role: fields.text("the role")?.to_owned(),
            local_world_size: fields.u32("the local world size")?,
            program: fields.rest(|fields| {
                Ok(Program {
                    name: fields.sentence("the program")?,
                    fingerprint: fields.u64("the program")?,
                    has_run_id: fields.u8("the program")? != 0,
                })
            })?,
            attempt: fields.rest(|fields| fields.u32("the number of the join"))?,
            ..Self::new(instance, run, node, settings)
        };
        let replaced = fields.rest(|fields| fields.u8("the agents that it replaces"))?;
        for _ in 0..replaced.unwrap_or(0) {
            let instance = fields.u64("the agents that it replaces")?;
            join.replaces.push(instance);
        }
        let fence = fields.rest(|fields| fields.u32("the fence"))?;
        let timeout = fields.rest(|fields| fields.u32("the node timeout"))?;
        if let Some(timeout) = timeout.or(fence.filter(|fence| *fence != 0)) {
            join.settings.node_timeout = Duration::from_millis(timeout.into());
        }
        let from = fields.rest(|fields| fields.host("the address of the agent"))?;
        join.from = from.filter(|from| !from.is_empty());
        join.settings.fence = match fields.0 {
            [OFF, ..] => FencePolicy::Off,
            [AUTO, ..] => FencePolicy::Auto,
            _ => FencePolicy::Unsaid,
        };
        Ok(join)
    }
}
