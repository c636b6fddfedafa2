//! Finding the coordinator among the places of the voters.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_store::resolve;
use rdzv_trust::{Channel, Credentials};
use rdzv_voters::{ATTEMPT, Frame, SearchOrder};
use socket2::{SockRef, TcpKeepalive};

use crate::dynamic::probe::{Found, ProbeError, probe, read_exact};

/// The time after which the kernel gives a connection between voters up whose other machine is silent.
const SILENCE: Duration = Duration::from_secs(2);

/// The kernel asks a silent machine after so long, and again and again.
const ASK: Duration = Duration::from_secs(1);

/// The most places of a group that agents may join.
const MOST_PLACES: usize = 32;

/// The longest answer to the question for the coordinator, in bytes.
const LONGEST_ANSWER: u64 = 1024;

/// The places at which the coordinator may be.
#[derive(Debug, Clone)]
pub struct Search {
    places: Vec<Endpoint>,
    order: SearchOrder,
    /// The places whose last answer was a refusal, of either side, with the reason.
    refused: BTreeMap<usize, String>,
    /// Agents may join the group, so voters may name other places.
    is_open: bool,
    /// It is over when nobody listens at the endpoint.
    needs_endpoint: bool,
    /// Nobody listened at the endpoint when it was asked last.
    is_vacant: bool,
    /// A member of the group may be at the endpoint. If none is, the process there knows no more than other agents do.
    has_endpoint: bool,
}

/// The coordinator.
pub struct Located {
    /// Its place, by its index.
    pub place: usize,
    /// The address at which it was reached.
    pub address: SocketAddr,
    /// A connection to it that can be used for native rendezvous.
    pub(in crate::dynamic) channel: Channel,
}

impl Search {
    /// Among these places.
    pub fn new(places: Vec<Endpoint>) -> Self {
        let order = SearchOrder::new(places.iter().map(Endpoint::to_string).collect());
        Self {
            places,
            order,
            refused: BTreeMap::new(),
            is_open: false,
            needs_endpoint: false,
            is_vacant: false,
            has_endpoint: true,
        }
    }

    /// The places, as people know them.
    pub fn places(&self) -> Vec<String> {
        self.places.iter().map(Endpoint::to_string).collect()
    }

    /// The place at which the coordinator was found last.
    pub(in crate::dynamic) fn coordinator(&self) -> Option<String> {
        let place = self.places.get(self.order.found_at()?);
        place.map(Endpoint::to_string)
    }

    /// Among the members of a group that agents may join: the endpoint of the job, and others that are known.
    pub fn of_open_group(endpoint: Endpoint, members: &[String]) -> Self {
        let mut search = Self::new(vec![endpoint]);
        search.is_open = true;
        search.know(members);
        search
    }

    /// The same for an agent on the machine of the endpoint, which was told there where the coordinator is. If nobody is there any
    /// more before it is found, this agent can take that place.
    pub fn needing_endpoint(mut self) -> Self {
        self.needs_endpoint = true;
        self
    }

    /// Whether the endpoint is needed, and nobody listens there.
    pub fn has_lost_endpoint(&self) -> bool {
        self.needs_endpoint && self.is_vacant
    }

    /// These are the other members of the group from here on.
    pub fn know(&mut self, members: &[String]) {
        self.places.truncate(1);
        let endpoint = self.places.first().map(Endpoint::to_string);
        self.has_endpoint =
            members.is_empty() || endpoint.is_some_and(|endpoint| members.contains(&endpoint));
        for member in members {
            if let Ok(place) = Endpoint::parse(member, 0)
                && !self.places.contains(&place)
            {
                self.places.push(place);
            }
        }
        self.refused.clear();
        let places = self.places.iter().map(Endpoint::to_string);
        self.order.replace(places.collect());
    }

    /// Whether agents may join the group.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// A voter has named a place.
    fn learn(&mut self, coordinator: &str) {
        if !self.order.elsewhere(coordinator)
            && self.is_open
            && let Ok(place) = Endpoint::parse(coordinator, 0)
            && self.places.len() < MOST_PLACES
        {
            self.places.push(place);
            let places = self.places.iter().map(Endpoint::to_string);
            self.order.replace(places.collect());
            self.order.elsewhere(coordinator);
        }
    }

    /// The same, where the coordinator was found at this place.
    pub fn beginning_at(&self, place: usize) -> Self {
        let mut search = self.clone();
        search.order.found(place);
        search
    }

    /// A place, by its index.
    pub fn place(&self, place: usize) -> Option<&Endpoint> {
        self.places.get(place)
    }

    /// Asks the places until one of them is the coordinator, each at most once beside the one that another names, and for no
    /// longer than `longest`.
    ///
    /// # Errors
    ///
    /// The answer of each place, if none of them is.
    pub fn find(
        &mut self,
        credentials: &Credentials,
        longest: Duration,
    ) -> Result<Located, String> {
        let mut answers = Vec::new();
        let mut asked = 0;
        while asked <= self.order.len() {
            asked += 1;
            let place = self.order.advance();
            let Some(endpoint) = self.places.get(place).cloned() else {
                break;
            };
            let attempt = self.order.attempt().min(longest);
            let answer = ask(&endpoint, credentials, attempt);
            if place == 0 {
                self.is_vacant = matches!(answer, Err(ProbeError::Vacant(_)));
            }
            match &answer {
                Err(ProbeError::Refused(why)) => drop(self.refused.insert(place, why.clone())),
                _ => drop(self.refused.remove(&place)),
            }
            match answer {
                Ok(Answer::Coordinator(address, channel)) => {
                    self.order.found(place);
                    return Ok(Located {
                        place,
                        address,
                        channel,
                    });
                }
                Ok(Answer::Voter(Some(coordinator))) => {
                    self.learn(&coordinator);
                    answers.push((endpoint, format!("names {coordinator}")));
                }
                Ok(Answer::Voter(None)) => {
                    answers.push((endpoint, "knows no coordinator".to_owned()));
                    // It was waited for already.
                    break;
                }
                Err(why) => answers.push((endpoint, why.to_string())),
            }
        }
        self.order.failed();
        answers.sort();
        answers.dedup();
        Err(listed(answers.iter().map(|(place, why)| (place, &why[..]))))
    }

    /// Whether another place than the one of the coordinator is said to have it now. The connection to that one is not
    /// needed for the question.
    pub fn has_moved(&mut self, credentials: &Credentials) -> bool {
        for place in self.order.others() {
            let is_member = place > 0 || self.has_endpoint;
            let Some(endpoint) = self.places.get(place).filter(|_| is_member) else {
                continue;
            };
            match ask(endpoint, credentials, ATTEMPT) {
                Ok(Answer::Coordinator(..)) => {
                    self.order.suppose(place);
                    return true;
                }
                Ok(Answer::Voter(Some(coordinator))) => return self.order.has_moved(&coordinator),
                Ok(Answer::Voter(None)) | Err(_) => {}
            }
        }
        false
    }

    /// The refusals, if it was more than half of the places: then this node has the wrong token or certificate. Of fewer,
    /// they have, and the others may do without them.
    pub fn refusals(&self) -> Option<String> {
        let refused = self.refused.iter();
        let refused = refused.filter_map(|(at, why)| Some((self.places.get(*at)?, &why[..])));
        (self.refused.len() * 2 > self.places.len()).then(|| listed(refused))
    }
}

/// Places with what was found there.
fn listed<'a>(answers: impl Iterator<Item = (&'a Endpoint, &'a str)>) -> String {
    let answers = answers.map(|(place, why)| format!("{place}: {why}"));
    answers.collect::<Vec<_>>().join("; ")
}

/// The answer of a place.
enum Answer {
    Coordinator(SocketAddr, Channel),
    /// Another voter, which names the endpoint of the coordinator, if it knows one in time.
    Voter(Option<String>),
}

/// Connecting takes at most `within`, and so does the answer.
fn ask(
    endpoint: &Endpoint,
    credentials: &Credentials,
    within: Duration,
) -> Result<Answer, ProbeError> {
    let addresses = resolve(&endpoint.host, endpoint.port, Some(within));
    let addresses = addresses.map_err(|error| ProbeError::Other(error.to_string()))?;
    let mut why = ProbeError::Other("its name has no address".to_owned());
    for address in addresses {
        match probe(address, within, credentials) {
            Ok(Found::Coordinator(channel)) => return Ok(Answer::Coordinator(address, channel)),
            Ok(Found::Voter(channel)) => {
                return Ok(Answer::Voter(who_coordinates(channel, within)?));
            }
            Ok(Found::Store) => {
                why = ProbeError::Other("there is a store that is no voter".to_owned());
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn who_coordinates(mut channel: Channel, within: Duration) -> io::Result<Option<String>> {
    let mut question = Vec::new();
    Frame::WhoCoordinates.write(&mut question);
    channel.write_all(&question)?;
    let mut head = [0; 9];
    match read_exact(&mut channel, &mut head, within) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Ok(None);
        }
        read => read?,
    }
    let [opcode, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_ANSWER {
        return Err(io::Error::other("its answer is too long"));
    }
    let mut body = vec![0; length as usize];
    read_exact(&mut channel, &mut body, within)?;
    match Frame::read(opcode, &body) {
        Ok(Frame::Elsewhere { address, .. }) => Ok(Some(address)),
        Ok(_) => Err(io::Error::other("its answer is about something else")),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Has the kernel end a connection soon whose other machine is gone or cut off. A process that is stopped is not: its
/// kernel answers for it.
pub(super) fn watch_closely(channel: &Channel) -> io::Result<()> {
    let socket = SockRef::from(channel.stream());
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(ASK).with_interval(ASK))?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}
