//! Events from the coordinator to an agent.

use std::time::Duration;

use super::WireError;
use super::fields::{Fields, at_most_255, text};
use crate::field::{Field, write};
use crate::slot;
use crate::waiting::{Arrived, MOST_NAMED};
use rdzv_core::rank::Assignment;

/// Maximum length of an event.
pub const MAX_EVENT_BYTES: u32 = 1 << 20;

/// Maximum number of ranks in [`Event::Formed::replaced`].
pub const MOST_REPLACED: usize = 4096;

/// Length of the head of an event: its kind, and the length of its fields.
const HEAD: usize = 5;

/// An event from the coordinator to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The round is complete, and the agent participates.
    Formed {
        /// Number of the round.
        round: u64,
        /// The agent's rank.
        rank: u32,
        /// Number of participants.
        world_size: u32,
        /// Ranks of the agent's workers.
        ///
        /// `None` unless every participant is native and has sent its number of workers.
        assignment: Option<Assignment>,
        /// Ranks of workers whose node was not in the last round.
        ///
        /// Empty in the first round, without an assignment, and for more than [`MOST_REPLACED`].
        replaced: Vec<u32>,
    },
    /// Endpoint of the workers' store of a round.
    Master {
        /// The round.
        round: u64,
        /// The host.
        addr: String,
        /// The port.
        port: u16,
    },
    /// A complete round is over.
    Membership {
        /// The round.
        round: u64,
        /// Number of nodes that wait for the next round.
        waiting: u32,
        /// Reason for the end of the round, as a sentence.
        reason: String,
    },
    /// Another agent has failed permanently.
    PeerFailed {
        /// The node of the agent.
        node: String,
        /// The reason that it has sent.
        reason: String,
    },
    /// The run is over.
    Closed,
    /// The coordinator refuses the agent.
    Refused(AgentRefusal),
    /// The agent has left, as it requested.
    Left,
    /// The coordinator is running.
    ///
    /// A spare, or an agent in a forming round, also receives the nodes that have joined.
    Alive(Option<Arrived>),
    /// The event [`Alive`](Self::Alive) with messages of agents.
    Reports {
        /// The nodes that have joined, as in [`Alive`](Self::Alive).
        arrived: Option<Arrived>,
        /// Number that changes when a viewer attaches; 0 while there is none.
        watch: u32,
        /// Messages, each after its length (`u32`).
        messages: Vec<u8>,
    },
    /// State of a run.
    Status {
        /// `true` if the run is over.
        closed: bool,
        /// Number of nodes that wait for the next round.
        waiting: u32,
    },
    /// The agent has a session; the coordinator may have a successor if it dies.
    ///
    /// A coordinator that is not restartable does not send it, and agents without a program do not
    /// receive it.
    Attached(Authority),
    /// A restarted coordinator can recover the round that is announced next.
    Recoverable {
        /// Number of the round.
        round: u64,
        /// Rank of the participant that hosts the coordinator, if one does.
        ///
        /// `None` if voters have elected the coordinator.
        host: Option<u32>,
    },
    /// The workers of all participants have succeeded.
    AllSucceeded {
        /// The round.
        round: u64,
    },
    /// The coordinator of the agent's round, at another address, may be running.
    ///
    /// The run is undecided until this other coordinator has certainly ended. Only for agents that
    /// send [their address](super::Join::from).
    Undecided {
        /// Numeric address and port of the other coordinator.
        address: String,
    },
    /// The current voters, which include the coordinator, and the learners.
    ///
    /// Sent only to agents that have sent [`Candidate`](super::Operation::Candidate).
    Voters(VoterList),
    /// Turns the fence of a round on or off.
    ///
    /// Only for agents that [accept a fence](crate::FencePolicy::Auto). They answer the end of a
    /// fence with [`Lifted`](super::Standing::Lifted).
    Fence {
        /// The round.
        round: u64,
        /// `true` if the round has a fence.
        acts: bool,
    },
    /// Answer to a question about the lease: the coordinator has a majority.
    ///
    /// A majority has confirmed the coordinator since the question arrived, and the coordinator
    /// keeps the agent.
    Backed {
        /// Number that the agent gave the question.
        number: u64,
    },
}

/// Identity of a coordinator in the sequence of coordinators of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Authority {
    /// Random id of the sequence, drawn by the first coordinator.
    pub cluster: u64,
    /// Number of this coordinator in the sequence; later ones have higher numbers.
    pub epoch: u32,
    /// Time for which agents wait for a successor; zero if there will be none.
    pub timeout: Duration,
    /// `true` if agents can be voters, and must send `Candidate`.
    pub takes_voters: bool,
    /// `true` if the coordinator is in the agent's process.
    ///
    /// Neither of them then needs to check the other's machine.
    pub in_process: bool,
}

/// The voters and learners of a group, as an agent learns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoterList {
    /// `host:port` of each voter, then of each learner; at most 255 together.
    pub addresses: Vec<String>,
    /// Number of voters in `addresses`.
    pub voters: u8,
    /// `true` if the agent is invited to become a voter.
    pub invites: bool,
}

/// Reason for which the coordinator refuses an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentRefusal {
    /// The run is over.
    Closed,
    /// The run ended while the agent was a spare.
    NotNeeded,
    /// The round was not complete in time.
    JoinTimeout {
        /// Time for which the agent waited.
        elapsed: Duration,
        /// Nodes that had joined.
        ///
        /// If there are too many, the last entry contains the number of further nodes.
        joined: Vec<String>,
    },
    /// The join is invalid or contradicts other agents; the reason as a sentence.
    Unusable(String),
}

impl Event {
    /// Appends the event, with its kind and length.
    pub fn write(&self, out: &mut Vec<u8>) {
        let length_at = out.len() + 1;
        self.write_fields(out);
        let length = (out.len() - length_at) as u32;
        out.splice(length_at..length_at, length.to_le_bytes());
    }

    /// Appends the kind and the fields.
    fn write_fields(&self, out: &mut Vec<u8>) {
        match self {
            Self::Formed {
                round,
                rank,
                world_size,
                assignment,
                replaced,
            } => {
                write(out, &[&1_u8, round, rank, world_size]);
                if let Some(assignment) = *assignment {
                    let (base, world, base_role, role_world) = assignment.into();
                    write(out, &[&base, &world, &base_role, &role_world]);
                    write(out, &[&(replaced.len() as u32)]);
                    replaced.iter().for_each(|rank| write(out, &[rank]));
                }
            }
            Self::Master { round, addr, port } => write(out, &[&2_u8, round, addr, port]),
            Self::Membership {
                round,
                waiting,
                reason,
            } => write(out, &[&3_u8, round, waiting, reason]),
            Self::PeerFailed { node, reason } => write(out, &[&4_u8, node, reason]),
            Self::Refused(refusal) => write(out, &[&6_u8, refusal]),
            Self::Status { closed, waiting } => write(out, &[&9_u8, closed, waiting]),
            Self::Alive(Some(arrived)) => {
                out.push(8);
                write_arrived(out, arrived);
            }
            Self::Reports {
                arrived,
                watch,
                messages,
            } => {
                out.push(8);
                write_arrived(out, arrived.as_ref().unwrap_or(&Arrived::default()));
                write(out, &[watch]);
                out.extend_from_slice(messages);
            }
            Self::Attached(authority) => {
                write(out, &[&10_u8, &authority.cluster, &authority.epoch]);
                write(out, &[&authority.timeout]);
                out.push(slot::flags([authority.takes_voters, authority.in_process]));
            }
            Self::Voters(list) => {
                let addresses = at_most_255(&list.addresses);
                let count = addresses.len() as u8;
                write(out, &[&15_u8, &list.invites, &list.voters, &count]);
                addresses.iter().for_each(|address| text(out, address));
            }
            Self::Recoverable { round, host } => write(out, &[&11_u8, round, host]),
            Self::AllSucceeded { round } => write(out, &[&12_u8, round]),
            Self::Backed { number } => write(out, &[&13_u8, number]),
            Self::Fence { round, acts } => write(out, &[&16_u8, round, acts]),
            Self::Undecided { address } => write(out, &[&14_u8, address]),
            Self::Closed => out.push(5),
            Self::Left => out.push(7),
            Self::Alive(None) => out.push(8),
        }
    }

    /// Reads the fields of an event.
    pub fn read(kind: u8, payload: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields(payload);
        Ok(match kind {
            1 => Self::Formed {
                round: fields.u64("the round")?,
                rank: fields.u32("the rank")?,
                world_size: fields.u32("the world size")?,
                assignment: fields.rest(|fields| {
                    let mut number = || fields.u32("the assignment");
                    let numbers = (number()?, number()?, number()?, number()?);
                    Ok(Assignment::from(numbers))
                })?,
                replaced: fields.rest(read_replaced)?.unwrap_or_default(),
            },
            2 => Self::Master {
                round: fields.u64("the round")?,
                addr: fields.host("the master address")?,
                port: fields.u16("the master port")?,
            },
            3 => Self::Membership {
                round: fields.u64("the round")?,
                waiting: fields.u32("the number of waiting nodes")?,
                reason: fields.sentence("the reason")?,
            },
            4 => Self::PeerFailed {
                node: fields.sentence("the node")?,
                // A record may follow the sentence. Its texts are escaped when it is parsed.
                reason: fields.text("the reason")?.to_owned(),
            },
            5 => Self::Closed,
            6 => Self::Refused(AgentRefusal::read(&mut fields)?),
            7 => Self::Left,
            8 => {
                let arrived = fields.rest(read_arrived)?;
                match fields.rest(|fields| fields.u32("the number of the watch"))? {
                    None => Self::Alive(arrived),
                    Some(watch) => Self::Reports {
                        // If the agent waits for a round, at least one node has joined.
                        arrived: arrived.filter(|arrived| arrived.nodes > 0),
                        watch,
                        messages: fields.0.to_vec(),
                    },
                }
            }
            9 => Self::Status {
                closed: fields.flag("the flag of a closed run")?,
                waiting: fields.u32("the number of waiting nodes")?,
            },
            10 => {
                let (cluster, epoch) = (fields.u64("the cluster")?, fields.u32("the epoch")?);
                let timeout = fields.duration("the timeout")?;
                let [takes_voters, in_process] = slot::read_flags(fields.u8("the flags")?);
                Self::Attached(Authority {
                    cluster,
                    epoch,
                    timeout,
                    takes_voters,
                    in_process,
                })
            }
            11 => Self::Recoverable {
                round: fields.u64("the round")?,
                host: fields.rest(|fields| fields.u32("the host"))?,
            },
            12 => Self::AllSucceeded {
                round: fields.u64("the round")?,
            },
            14 => Self::Undecided {
                address: fields.host("the last coordinator")?,
            },
            13 => Self::Backed {
                number: fields.u64("the number of the question")?,
            },
            15 => {
                let invites = fields.flag("the flag of an invitation")?;
                let voters = fields.u8("the number of voters")?;
                let count = fields.u8("the voters")?;
                let mut address = || fields.host("the address of a voter");
                let addresses = (0..count).map(|_| address()).collect::<Result<_, _>>()?;
                Self::Voters(VoterList {
                    addresses,
                    voters,
                    invites,
                })
            }
            16 => Self::Fence {
                round: fields.u64("the round")?,
                acts: fields.flag("the flag of the fence")?,
            },
            other => return Err(WireError::Unknown(other)),
        })
    }
}

fn read_replaced(fields: &mut Fields<'_>) -> Result<Vec<u32>, WireError> {
    let count = fields.u32("the replaced ranks")? as usize;
    let ranks = (0..count).map(|_| fields.u32("the replaced ranks"));
    let ranks: Vec<u32> = ranks.collect::<Result<_, _>>()?;
    // A worker could not get a longer list in its environment.
    Ok(Some(ranks)
        .filter(|it| it.len() <= MOST_REPLACED)
        .unwrap_or_default())
}

fn write_arrived(out: &mut Vec<u8>, arrived: &Arrived) {
    let named = &arrived.named[..arrived.named.len().min(MOST_NAMED)];
    write(
        out,
        &[&arrived.nodes, &arrived.is_spare, &(named.len() as u8)],
    );
    named.iter().for_each(|host| text(out, host));
}

fn read_arrived(fields: &mut Fields<'_>) -> Result<Arrived, WireError> {
    let nodes = fields.u32("the number of joined nodes")?;
    let is_spare = fields.flag("the flag of a spare agent")?;
    let count = fields.u8("the joined hosts")?;
    let mut host = || fields.sentence("a joined host");
    let mut named = (0..count).map(|_| host()).collect::<Result<Vec<_>, _>>()?;
    // A peer may name more, but a log line has no room for them.
    named.truncate(MOST_NAMED);
    Ok(Arrived {
        nodes,
        named,
        is_spare,
    })
}

impl Field for AgentRefusal {
    fn write(&self, out: &mut Vec<u8>) {
        let (why, sentence) = match self {
            Self::Closed => (0, ""),
            Self::NotNeeded => (1, ""),
            Self::JoinTimeout { .. } => (2, ""),
            Self::Unusable(sentence) => (3, &**sentence),
        };
        out.push(why);
        text(out, sentence);
        if let Self::JoinTimeout { elapsed, joined } = self {
            let joined = &joined[..joined.len().min(usize::from(u16::MAX))];
            write(out, &[elapsed, &(joined.len() as u16)]);
            joined.iter().for_each(|node| text(out, node));
        }
    }
}

impl AgentRefusal {
    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        let why = fields.u8("the refusal")?;
        let sentence = fields.sentence("the refusal")?;
        Ok(match why {
            0 => Self::Closed,
            1 => Self::NotNeeded,
            2 => {
                let elapsed = fields.duration("the elapsed time")?;
                let count = fields.u16("the joined nodes")?;
                let mut node = || fields.sentence("a joined node");
                let joined = (0..count).map(|_| node()).collect::<Result<_, _>>()?;
                Self::JoinTimeout { elapsed, joined }
            }
            3 => Self::Unusable(sentence),
            other => return Err(WireError::Unknown(other)),
        })
    }
}

/// Parser of events from a stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct EventReader {
    bytes: Vec<u8>,
    /// Number of bytes that have been parsed.
    read: usize,
}

impl EventReader {
    /// Appends received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes and returns the next event; `None` if it is incomplete.
    ///
    /// After an error the stream is unusable.
    pub fn next_event(&mut self) -> Result<Option<Event>, WireError> {
        let unread = &self.bytes[self.read..];
        let Some((&[kind, a, b, c, d], rest)) = unread.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]);
        if length > MAX_EVENT_BYTES {
            return Err(WireError::TooLong(length));
        }
        let Some(payload) = rest.get(..length as usize) else {
            return Ok(None);
        };
        let event = Event::read(kind, payload)?;
        self.read += HEAD + payload.len();
        Ok(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_hosts_that_a_peer_names_the_first_few_are_kept() {
        let mut body = vec![9, 0, 0, 0, 0, 9];
        for host in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
            text(&mut body, host);
        }
        let mut reader = EventReader::default();
        reader.feed(&[&[8][..], &(body.len() as u32).to_le_bytes(), &body].concat());
        let arrived = Arrived {
            nodes: 9,
            named: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            is_spare: false,
        };
        assert_eq!(reader.next_event(), Ok(Some(Event::Alive(Some(arrived)))));
    }

    #[test]
    fn a_giant_event_is_refused_by_its_head() {
        let mut reader = EventReader::default();
        reader.feed(&[8, 0, 0, 0, 0xff]);
        assert_eq!(reader.next_event(), Err(WireError::TooLong(0xff00_0000)));
    }
}
