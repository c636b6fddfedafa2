//! Invariants at the end, checked by requests without a link.

use rdzv_core::ident::ConnId;
use rdzv_store_proto::number::parse;
use rdzv_store_proto::server::Input;
use rdzv_store_proto::wire::reply::CheckReply;
use rdzv_store_proto::wire::request;

use super::{World, id};
use crate::client::{MEMBERS, State};
use crate::{Result, broken};

impl World {
    /// Fails if a client still waits for something that exists, or for a reply.
    pub(super) fn check_end(&mut self) -> Result {
        let probe = id(self.clients.len());
        self.handle(Input::Connected(probe, None));
        self.ask(probe, |out| request::preamble(out, 0));
        for number in 0..self.clients.len() {
            let state = self.clients[number].state.clone();
            let is_there = match &state {
                State::Waiting { keys, .. } => {
                    let answer = self.ask(probe, |out| request::check(out, keys));
                    answer == [CheckReply::Ready as u8]
                }
                State::InBarrier { key } => {
                    let answer = self.ask(probe, |out| request::get(out, key));
                    parse(&answer[8..]).is_some_and(|arrived| arrived >= MEMBERS)
                }
                State::Idle => false,
                _ => return broken(format!("INV-S2: client {number} is still {state:?}")),
            };
            if is_there {
                return broken(format!(
                    "INV-S2: client {number} is still {state:?}, and all of it is there"
                ));
            }
        }
        Ok(())
    }

    /// Sends a request without a link.
    fn ask(&mut self, probe: ConnId, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.handle(Input::Bytes(probe, &bytes));
        let answer: Vec<u8> = self.machine.unsent(probe).flatten().copied().collect();
        self.handle(Input::Sent(probe, answer.len()));
        answer
    }
}
