//! Finding the coordinator among the places of the voters.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_rendezvous_proto::voter::{ATTEMPT, Frame, SearchOrder};
use rdzv_store::resolve;
use rdzv_trust::{Channel, Credentials};
use socket2::{SockRef, TcpKeepalive};

use super::probe::{Found, ProbeError, probe, read_exact};

/// The time after which the kernel gives a connection between voters up whose other machine is silent.
const SILENCE: Duration = Duration::from_secs(2);

/// The kernel asks a silent machine after so long, and again and again.
const ASK: Duration = Duration::from_secs(1);

/// The longest answer to the question for the coordinator, in bytes.
const LONGEST_ANSWER: u64 = 1024;

/// The places at which the coordinator may be.
#[derive(Debug)]
pub struct Search {
    places: Vec<Endpoint>,
    order: SearchOrder,
    /// The places whose last answer was a refusal, of either side, with the reason.
    refused: BTreeMap<usize, String>,
}

/// The coordinator.
pub struct Located {
    /// Its place, by its index.
    pub place: usize,
    /// The address at which it was reached.
    pub address: SocketAddr,
    /// A connection to it that can be used for native rendezvous.
    pub(super) channel: Channel,
}

impl Search {
    /// Among these places.
    pub fn new(places: Vec<Endpoint>) -> Self {
        let order = SearchOrder::new(places.iter().map(Endpoint::to_string).collect());
        Self {
            places,
            order,
            refused: BTreeMap::new(),
        }
    }

    /// The places, as people know them.
    pub(super) fn places(&self) -> Vec<String> {
        self.places.iter().map(Endpoint::to_string).collect()
    }

    /// The place at which the coordinator was found last.
    pub(super) fn coordinator(&self) -> Option<String> {
        let place = self.places.get(self.order.found_at()?);
        place.map(Endpoint::to_string)
    }

    /// The coordinator was found at this place.
    pub fn beginning_at(mut self, place: usize) -> Self {
        self.order.found(place);
        self
    }

    /// Asks the places until one of them is the coordinator, each at most once beside the one that another names. No further one
    /// is asked when there is something else to do.
    ///
    /// # Errors
    ///
    /// The answer of each place, if none of them is.
    pub fn find(
        &mut self,
        credentials: &Credentials,
        has_other_work: impl Fn() -> bool,
    ) -> Result<Located, String> {
        let mut answers = Vec::new();
        for asked in 0..=self.order.len() {
            if asked > 0 && has_other_work() {
                break;
            }
            let place = self.order.advance();
            let Some(endpoint) = self.places.get(place).cloned() else {
                break;
            };
            let answer = ask(&endpoint, credentials, self.order.attempt());
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
                    self.order.elsewhere(&coordinator);
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
            let Some(endpoint) = self.places.get(place) else {
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
