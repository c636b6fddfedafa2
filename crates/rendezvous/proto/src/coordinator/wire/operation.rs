//! Operations that an agent sends to its coordinator.

use rdzv_store_proto::wire::request::{self, rendezvous as opcode};

use super::fields::{Fields, at_most_255, text};
use super::{VERSION, WireError};
use crate::field::{Field, write};
use crate::ranks::Seat;
use crate::{FencePolicy, NodeDesc, Settings, slot};

/// State of an agent that reattaches.
///
/// It was in no round, holds a round, has left a round, or leaves the run.
const NONE: u8 = 0;
const HOLDS: u8 = 1;
const LEFT: u8 = 2;
const LEAVES: u8 = 3;

/// Fence policies.
const UNSAID: u8 = 0;
const OFF: u8 = 1;
const AUTO: u8 = 2;

/// Placeholder for a missing rank.
const NO_HOST: u32 = u32::MAX;

/// Operation that an agent sends to its coordinator.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Requests to participate in the next round.
    ///
    /// The answer is `Formed` or `Refused`, and may take a long time. A participant leaves its
    /// current round with this operation.
    Join(Box<Join>),
    /// Leaves the run; the answer is `Left`.
    Leave,
    /// Ends the run for all agents; the answer is `Closed`.
    Close {
        /// The run.
        run: String,
    },
    /// Reports that the agent is running; the answer is `Alive`.
    Heartbeat,
    /// Heartbeat with a message for viewers or all agents; not answered by `Alive`.
    Report(Report),
    /// Reports that the agent has failed permanently.
    Failed {
        /// The reason.
        reason: String,
    },
    /// Reports the endpoint of the workers' store; only rank 0 sends it.
    Master {
        /// The round.
        round: u64,
        /// The host.
        addr: String,
        /// The port.
        port: u16,
    },
    /// Requests the state of a run; the answer is `Status`.
    Status {
        /// The run.
        run: String,
    },
    /// Resumes over a new connection, as the first operation on it.
    ///
    /// The answer is `Attached`, followed by events that depend on the state of the agent. An agent
    /// that leaves receives only `Left`. If the run is over or the coordinator refuses the agent,
    /// the agent receives only an event about that.
    Reattach(Box<Reattach>),
    /// Reports that all workers of the agent have succeeded.
    ///
    /// In a recoverable round, the answer is `AllSucceeded`, once the workers of all participants
    /// have succeeded.
    Succeeded {
        /// The round.
        round: u64,
    },
    /// Reports that the agent closes the connection, but that it keeps running.
    ///
    /// The workers of the agent may run too. Without this operation, the end of the stream proves
    /// the end of an agent that sends [its address](Join::from).
    Detach,
    /// Reports that the agent searches for the coordinator at all known voters.
    ///
    /// Sent only to a coordinator that [takes voters](super::Authority::takes_voters).
    Candidate {
        /// `true` if the agent can be a voter, and is none.
        willing: bool,
    },
    /// Asks if the coordinator has a majority and keeps the agent.
    ///
    /// The answer is `Backed` if it does.
    Lease {
        /// Number that the agent gives the question.
        number: u64,
        /// The current lease of the agent.
        standing: Standing,
    },
}

/// Report about the job; the coordinator does not interpret its `message`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// `true` if a viewer is attached to the agent.
    ///
    /// The agent repeats this at least every two seconds.
    pub has_viewer: bool,
    /// `true` if all agents of the run receive the message.
    ///
    /// Otherwise, only agents that have a viewer receive it.
    pub is_for_all: bool,
    /// The message; may be empty.
    pub message: Vec<u8>,
}

/// An agent's lease when it sends [`Operation::Lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No lease yet, or one that is over.
    Asks,
    /// A valid lease.
    Holds,
    /// No lease, because the coordinator has turned the fence off.
    ///
    /// The coordinator does not answer it.
    Lifted,
}

/// State of an agent that resumes over a new connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Reattach {
    /// The coordinator that the agent obeyed last.
    pub last: LastCoordinator,
    /// The agent; its last join, if it holds no round.
    pub join: Join,
    /// The agent's round; `None` if the agent waits for one.
    pub holds: Option<HeldRound>,
    /// The agent's last round, if the agent waits for the next one.
    pub left: Option<HeldRound>,
    /// `true` if the agent leaves the run; the answer is `Left`.
    ///
    /// No coordinator has confirmed it yet: the connection broke before the answer to `Leave`
    /// arrived, or there was no connection. The message then contains no round.
    pub leaves: bool,
}

/// The coordinator that an agent obeyed last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastCoordinator {
    /// Cluster of the coordinator.
    pub cluster: u64,
    /// Number of the coordinator in its cluster.
    pub epoch: u32,
    /// Numeric address and port of the coordinator (`10.0.0.1:29400`).
    ///
    /// The agent has reached the coordinator there. Empty if the agent does not know it.
    pub address: String,
}

/// A round, as one of its participants knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldRound {
    /// Number of the round.
    pub round: u64,
    /// The agent's rank.
    pub rank: u32,
    /// Host and port of the workers' store, if the agent knows them.
    pub master: Option<(String, u16)>,
    /// `true` if all workers of the agent have succeeded.
    pub succeeded: bool,
    /// Number of participants; 0 if the agent does not know it.
    pub size: u32,
    /// Rank of the participant that hosted the coordinator, if one did.
    pub host: Option<u32>,
}

/// Description of an agent that joins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Join {
    /// Random id of the agent.
    ///
    /// It distinguishes a second connection of the agent from another agent with the same node.
    pub instance: u64,
    /// The run.
    pub run: String,
    /// The agent.
    pub node: NodeDesc,
    /// The agent's settings.
    ///
    /// Only those that the coordinator uses are sent. It uses the defaults for the rest.
    pub settings: Settings,
    /// Role of the agent's workers.
    pub role: String,
    /// Number of workers that the agent starts.
    ///
    /// 0 if the number is still unknown. The agents then exchange the numbers in the round's store.
    pub local_world_size: u32,
    /// Program of the workers, if the agent knows it.
    pub program: Option<Program>,
    /// Number of joins of this agent, this one included.
    pub attempt: u32,
    /// Instances of ended agents that this agent replaces; at most 255.
    pub replaces: Vec<u64>,
    /// Ranks of the agent's workers that exited in its last round; at most 255.
    pub lost: Vec<u32>,
    /// Numeric address and port of the agent's end of this connection.
    ///
    /// An example is `10.0.0.2:51000`. Only an agent that can reattach sends it. The agent promises
    /// to send [`Operation::Detach`] before it closes the connection cleanly, and that its workers
    /// end with its process. A connection from this address does not come from a proxy.
    pub from: Option<String>,
}

/// Program of an agent.
///
/// Two agents run the same program if the fingerprints are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name for users.
    pub name: String,
    /// Digest of the script, or of the name if no script can be read.
    pub fingerprint: u64,
    /// `true` if the user has specified a run id.
    ///
    /// All agents of a run for which the user has specified no run id must run the same program.
    pub has_run_id: bool,
}

impl Program {
    /// Creates a program with a fingerprint of these bytes.
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

impl Program {
    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            name: fields.sentence("the program")?,
            fingerprint: fields.u64("the program")?,
            has_run_id: fields.flag("the program")?,
        })
    }
}

impl Field for Program {
    fn write(&self, out: &mut Vec<u8>) {
        write(out, &[&self.name, &self.fingerprint, &self.has_run_id]);
    }
}

impl Operation {
    /// Returns the opcode of the operation.
    pub fn opcode(&self) -> u8 {
        match self {
            Self::Join(_) => opcode::JOIN,
            Self::Leave => opcode::LEAVE,
            Self::Close { .. } => opcode::CLOSE,
            Self::Heartbeat | Self::Report(_) => opcode::HEARTBEAT,
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

    /// Appends the request, with its opcode and length.
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
            Self::Report(report) => {
                out.push(slot::flags([report.has_viewer, report.is_for_all]));
                out.extend_from_slice(&report.message);
            }
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

    /// Reads the fields of the operation with this opcode.
    pub fn read(opcode: u8, payload: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields(payload);
        Ok(match opcode {
            opcode::JOIN => Self::Join(Box::new(Join::read(&mut fields)?)),
            opcode::LEAVE => Self::Leave,
            opcode::CLOSE => Self::Close {
                run: fields.text("the run id")?.to_owned(),
            },
            opcode::HEARTBEAT => match payload {
                [] => Self::Heartbeat,
                [flags, message @ ..] => {
                    let [has_viewer, is_for_all] = slot::read_flags(*flags);
                    let message = message.to_vec();
                    Self::Report(Report {
                        has_viewer,
                        is_for_all,
                        message,
                    })
                }
            },
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
                willing: fields.flag("whether the agent can be a voter")?,
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
        let standing = fields.u8("the kind of the held round")?;
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
        let host = self.host.unwrap_or(NO_HOST);
        write(out, &[&self.round, &self.rank, &self.size, &host]);
        let (addr, port) = self.master.clone().unwrap_or_default();
        write(out, &[&self.succeeded, &addr, &port]);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            round: fields.u64("the round")?,
            rank: fields.u32("the rank")?,
            size: fields.u32("the size of the round")?,
            host: Some(fields.u32("the host")?).filter(|rank| *rank != NO_HOST),
            succeeded: fields.flag("whether it has succeeded")?,
            master: {
                let addr = fields.host("the master address")?;
                let port = fields.u16("the master port")?;
                (!addr.is_empty()).then_some((addr, port))
            },
        })
    }
}

impl Join {
    /// Creates the first join of an agent without workers.
    pub fn new(instance: u64, run: &str, node: NodeDesc, settings: Settings) -> Self {
        Self {
            instance,
            run: run.to_owned(),
            node,
            settings,
            ..Self::default()
        }
    }

    /// `true` if the agent can reattach, as agents of `rdzv run` can.
    ///
    /// Other users of the rendezvous know no program.
    pub(crate) fn can_reattach(&self) -> bool {
        self.program.is_some()
    }

    /// Returns the seat of the agent with this rank.
    pub(crate) fn seat(&self, rank: u32) -> Seat {
        Seat {
            rank,
            instance: self.instance,
            role: self.role.clone(),
            local_world_size: self.local_world_size,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let (node, settings) = (&self.node, &self.settings);
        write(out, &[&VERSION, &self.instance, &self.run, &node.addr]);
        write(out, &[&node.pid, &node.local_id]);
        write(out, &[&settings.min_nodes, &settings.max_nodes]);
        write(out, &[&settings.join_timeout, &settings.last_call_timeout]);
        write(out, &[&settings.keep_alive_interval]);
        write(out, &[&settings.keep_alive_max_attempt]);
        write(out, &[&self.role, &self.local_world_size]);
        write(
            out,
            &[&self.attempt, &self.program.is_some(), &self.program],
        );
        let replaces = at_most_255(&self.replaces);
        out.push(replaces.len() as u8);
        replaces.iter().for_each(|instance| write(out, &[instance]));
        let from = self.from.as_deref().unwrap_or_default();
        write(out, &[&settings.node_timeout]);
        text(out, from);
        let fence = match settings.fence {
            FencePolicy::Unsaid => UNSAID,
            FencePolicy::Off => OFF,
            FencePolicy::Auto => AUTO,
        };
        write(out, &[&fence, &settings.sorts_ranks]);
        let lost = at_most_255(&self.lost);
        out.push(lost.len() as u8);
        lost.iter().for_each(|rank| write(out, &[rank]));
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
        let mut duration = || fields.duration("the settings");
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
            attempt: fields.u32("the number of the join")?,
            program: fields
                .flag("the program")?
                .then(|| Program::read(fields))
                .transpose()?,
            ..Self::new(instance, run, node, settings)
        };
        for _ in 0..fields.u8("the agents that it replaces")? {
            let instance = fields.u64("the agents that it replaces")?;
            join.replaces.push(instance);
        }
        join.settings.node_timeout = fields.duration("the node timeout")?;
        let from = fields.host("the address of the agent")?;
        join.from = Some(from).filter(|from| !from.is_empty());
        join.settings.fence = match fields.u8("the fence")? {
            OFF => FencePolicy::Off,
            AUTO => FencePolicy::Auto,
            _ => FencePolicy::Unsaid,
        };
        join.settings.sorts_ranks = fields.flag("the order")?;
        for _ in 0..fields.u8("the lost ranks")? {
            join.lost.push(fields.u32("the lost ranks")?);
        }
        Ok(join)
    }
}
