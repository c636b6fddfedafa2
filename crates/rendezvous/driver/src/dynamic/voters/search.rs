//! Search for the coordinator among the endpoints of the voters.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_store::resolve;
use rdzv_trust::{Channel, Credentials};
use rdzv_voters::{ATTEMPT, ControlFrame, SearchOrder};
use socket2::{SockRef, TcpKeepalive};

use crate::dynamic::probe::{Found, ProbeError, probe, read_exact};

/// Time without acknowledgements after which a voter connection ends.
const SILENCE: Duration = Duration::from_secs(2);

/// Time after which the kernel probes a silent machine, and the probe interval.
const ASK: Duration = Duration::from_secs(1);

/// Number of endpoints at which a search stops adding those that voters name.
const MAX_ENDPOINTS: usize = 32;

/// Maximum length of the answer of a voter, in bytes.
const LONGEST_ANSWER: u64 = 1024;

/// Endpoints at which the coordinator may be, with the progress of the search.
#[derive(Debug, Clone)]
pub struct Search {
    endpoints: Vec<Endpoint>,
    order: SearchOrder,
    /// Endpoints whose last result was a refusal by either side, with the reason.
    refused: BTreeMap<usize, String>,
    /// `true` if agents may join the group, so that voters may name new endpoints.
    is_open: bool,
    /// `true` if a vain search ends when no process listens at the endpoint.
    needs_endpoint: bool,
    /// `true` if no process listened at the endpoint at the last attempt.
    is_vacant: bool,
    /// `true` if a member of the group may be at the endpoint.
    ///
    /// Otherwise the process there knows no more than other agents do.
    has_endpoint: bool,
}

/// Coordinator that a search has found.
pub struct Located {
    /// Index of its endpoint.
    pub index: usize,
    /// Address of the connection.
    pub address: SocketAddr,
    /// Connection for the native rendezvous.
    pub(in crate::dynamic) channel: Channel,
}

impl Search {
    /// Creates a search among these endpoints.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        let order = SearchOrder::new(endpoints.iter().map(Endpoint::to_string).collect());
        Self {
            endpoints,
            order,
            refused: BTreeMap::new(),
            is_open: false,
            needs_endpoint: false,
            is_vacant: false,
            has_endpoint: true,
        }
    }

    /// Returns the endpoints, for messages.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.iter().map(Endpoint::to_string).collect()
    }

    /// Returns the endpoint at which the coordinator was last found.
    pub(in crate::dynamic) fn coordinator(&self) -> Option<String> {
        let endpoint = self.endpoints.get(self.order.found_at()?);
        endpoint.map(Endpoint::to_string)
    }

    /// Creates a search in a group that agents may join.
    ///
    /// It covers the endpoint of the job and the known members.
    pub fn of_open_group(endpoint: Endpoint, members: &[String]) -> Self {
        let mut search = Self::new(vec![endpoint]);
        search.is_open = true;
        search.know(members);
        search
    }

    /// Lets the caller end a vain search once no process listens at the endpoint.
    ///
    /// This is for an agent on the endpoint's machine that was redirected to another coordinator.
    /// If that search fails, the agent can host the endpoint.
    pub fn needing_endpoint(mut self) -> Self {
        self.needs_endpoint = true;
        self
    }

    /// `true` if the search needs the endpoint, and no process listens there.
    pub fn has_lost_endpoint(&self) -> bool {
        self.needs_endpoint && self.is_vacant
    }

    /// Sets the members of the group; the endpoint of the job stays the first one.
    pub fn know(&mut self, members: &[String]) {
        self.endpoints.truncate(1);
        let endpoint = self.endpoints.first().map(Endpoint::to_string);
        self.has_endpoint =
            members.is_empty() || endpoint.is_some_and(|endpoint| members.contains(&endpoint));
        for member in members {
            if let Ok(endpoint) = Endpoint::parse(member, 0)
                && !self.endpoints.contains(&endpoint)
            {
                self.endpoints.push(endpoint);
            }
        }
        self.refused.clear();
        let endpoints = self.endpoints.iter().map(Endpoint::to_string);
        self.order.replace(endpoints.collect());
    }

    /// `true` if agents may join the group.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Adds an endpoint that a voter has named.
    fn learn(&mut self, coordinator: &str) {
        if !self.order.elsewhere(coordinator)
            && self.is_open
            && let Ok(endpoint) = Endpoint::parse(coordinator, 0)
            && self.endpoints.len() < MAX_ENDPOINTS
        {
            self.endpoints.push(endpoint);
            let endpoints = self.endpoints.iter().map(Endpoint::to_string);
            self.order.replace(endpoints.collect());
            self.order.elsewhere(coordinator);
        }
    }

    /// Returns a copy that records the endpoint of the coordinator.
    pub fn beginning_at(&self, index: usize) -> Self {
        let mut search = self.clone();
        search.order.found(index);
        search
    }

    /// Returns the endpoint with this index.
    pub fn endpoint(&self, index: usize) -> Option<&Endpoint> {
        self.endpoints.get(index)
    }

    /// Asks the endpoints until one of them is the coordinator.
    ///
    /// It asks the endpoints in turn. If a voter names an endpoint, it asks that endpoint next. It
    /// stops at a voter that knows no coordinator, and makes at most one attempt more than there
    /// are endpoints. Each step of an attempt (such as the connection or the answer) takes at most
    /// `longest`.
    ///
    /// # Errors
    ///
    /// Returns the answers of the endpoints that it asked, if none of them is the coordinator.
    pub fn find(
        &mut self,
        credentials: &Credentials,
        longest: Duration,
    ) -> Result<Located, String> {
        let mut answers = Vec::new();
        let mut asked = 0;
        while asked <= self.order.len() {
            asked += 1;
            let index = self.order.advance();
            let Some(endpoint) = self.endpoints.get(index).cloned() else {
                break;
            };
            let attempt = self.order.attempt().min(longest);
            let answer = ask(&endpoint, credentials, attempt);
            if index == 0 {
                self.is_vacant = matches!(answer, Err(ProbeError::Vacant(_)));
            }
            match &answer {
                Err(ProbeError::Refused(why)) => drop(self.refused.insert(index, why.clone())),
                _ => drop(self.refused.remove(&index)),
            }
            match answer {
                Ok(Answer::Coordinator(address, channel)) => {
                    self.order.found(index);
                    return Ok(Located {
                        index,
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
                    // The voter has already waited for a coordinator.
                    break;
                }
                Err(why) => answers.push((endpoint, why.to_string())),
            }
        }
        self.order.failed();
        answers.sort();
        answers.dedup();
        Err(listed(answers.iter().map(|(index, why)| (index, &why[..]))))
    }

    /// `true` if a voter names another coordinator, or is one itself.
    ///
    /// The question needs no connection to the coordinator.
    pub fn has_moved(&mut self, credentials: &Credentials) -> bool {
        for index in self.order.others() {
            let is_member = index > 0 || self.has_endpoint;
            let Some(endpoint) = self.endpoints.get(index).filter(|_| is_member) else {
                continue;
            };
            match ask(endpoint, credentials, ATTEMPT) {
                Ok(Answer::Coordinator(..)) => {
                    self.order.suppose(index);
                    return true;
                }
                Ok(Answer::Voter(Some(coordinator))) => return self.order.has_moved(&coordinator),
                Ok(Answer::Voter(None)) | Err(_) => {}
            }
        }
        false
    }

    /// Returns the refusals, if they came from more than half of the endpoints.
    ///
    /// This node then has the wrong token or certificate. If fewer endpoints refuse, the fault is
    /// theirs, and the others may suffice.
    pub fn refusals(&self) -> Option<String> {
        let refused = self.refused.iter();
        let refused = refused.filter_map(|(at, why)| Some((self.endpoints.get(*at)?, &why[..])));
        (self.refused.len() * 2 > self.endpoints.len()).then(|| listed(refused))
    }
}

/// Formats endpoints with the answer of each.
fn listed<'a>(answers: impl Iterator<Item = (&'a Endpoint, &'a str)>) -> String {
    let answers = answers.map(|(index, why)| format!("{index}: {why}"));
    answers.collect::<Vec<_>>().join("; ")
}

enum Answer {
    Coordinator(SocketAddr, Channel),
    /// Another voter, with the endpoint of the coordinator if it knows one in time.
    Voter(Option<String>),
}

/// Asks one endpoint.
///
/// Name resolution takes at most `within`. For each of its addresses, the connection, the proof of
/// membership and each answer take at most `within`.
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
                why = ProbeError::Other("a store that is not a voter answered".to_owned());
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn who_coordinates(mut channel: Channel, within: Duration) -> io::Result<Option<String>> {
    let mut question = Vec::new();
    ControlFrame::WhoCoordinates.write(&mut question);
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
    match ControlFrame::read(opcode, &body) {
        Ok(ControlFrame::Elsewhere { address, .. }) => Ok(Some(address)),
        Ok(_) => Err(io::Error::other("it answered with another frame")),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Lets the kernel end a connection soon after the other machine is lost.
///
/// A stopped process does not count as lost, because its kernel sends acknowledgements for it.
pub(super) fn watch_closely(channel: &Channel) -> io::Result<()> {
    let socket = SockRef::from(channel.stream());
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(ASK).with_interval(ASK))?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}
