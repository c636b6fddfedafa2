//! Functions with which the application participates in a gather.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::worker::WorkerName;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::leader::GATHER;
use super::message::{Report, read_answer};
use crate::error::{RpcError, RpcErrorKind};
use crate::message::{Incoming, Outgoing, decode, encode};
use crate::payload::Payload;
use crate::runtime::call::{CallOptions, Destination, Timeout};
use crate::runtime::core::RpcAgent;
use crate::runtime::future::{InFlight, RpcFuture};
use crate::runtime::gathers::{Values, participant};
use crate::runtime::member::Member;
use crate::service::code_kind::{CodeKind, code_kind};
use crate::wire::clock::micros;

impl RpcAgent {
    /// Sends a value to all members, and returns the values of all members by name.
    ///
    /// Blocks until all values have arrived. `members` are the participants, including this worker;
    /// `None` means the group as this worker currently sees it. All participants must make the same
    /// sequence of gathers with the same members, with values that each of them can decode as `T`.
    /// A value may contain tensors in main memory, but no remote references.
    ///
    /// The call returns either all values or an error. Gathers among the same members are matched
    /// in order, even after a failed gather.
    ///
    /// # Errors
    ///
    /// - [`RpcErrorKind::Deadline`] for all waiting members after `within`, or up to 1 s later if
    ///   the leader does not answer. The error names the members that did not report, or the
    ///   leader.
    /// - [`RpcErrorKind::PeerLost`] for all members as soon as the leader notices that a member is
    ///   lost, or is lost itself. The error names the lost member.
    /// - [`RpcErrorKind::UnknownWorker`] if a member is not in the group.
    /// - [`RpcErrorKind::InvalidArgument`] if this worker is not among the members, if the values
    ///   are too large, or if `within` is shorter than 1 µs. Also if an async function calls this,
    ///   because async functions must not block.
    pub fn all_gather<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        members: Option<&[Destination<'_>]>,
        within: Duration,
    ) -> Result<BTreeMap<WorkerName, T>, RpcError> {
        let core = self.core();
        let members = self.participants(members)?;
        if within < Duration::from_micros(1) {
            return Err(RpcError::invalid(
                "the timeout of a gather must be positive",
            ));
        }
        if code_kind() == CodeKind::Async {
            return Err(RpcError::invalid(
                "an async function must not block: call the gather in a function in `blocking`",
            ));
        }
        let leader = &members[0];
        // Encoded without a device map: every member gets the value, and their devices differ.
        let value = encode(value, &mut Outgoing::request(&leader.info))?;
        let values = self
            .gather(&members, value, within)
            .map_err(|error| error.with_method(GATHER.name()))?;
        let mut decoded = BTreeMap::new();
        for member in &members {
            let name = &member.info.name;
            let value = values.get(name).ok_or_else(|| {
                let text = format!("the leader {} sent no value of {name}", leader.info);
                RpcError::new(RpcErrorKind::Protocol, text)
            })?;
            let mut incoming = Incoming::new(&member.info, &core.backend);
            decoded.insert(name.clone(), decode(value, &mut incoming)?);
        }
        Ok(decoded)
    }

    /// Blocks until all members have called this function.
    /// This is an [`all_gather`](Self::all_gather) without values.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all_gather`](Self::all_gather).
    pub fn barrier(
        &self,
        members: Option<&[Destination<'_>]>,
        within: Duration,
    ) -> Result<(), RpcError> {
        self.all_gather(&(), members, within).map(drop)
    }

    /// Returns the participants ordered by name.
    fn participants(&self, members: Option<&[Destination<'_>]>) -> Result<Vec<Member>, RpcError> {
        let core = self.core();
        let by_name: BTreeMap<WorkerName, Member> = match members {
            None => {
                let members = core.members();
                let all = members.values().cloned();
                all.map(|member| (member.info.name.clone(), member))
                    .collect()
            }
            Some(chosen) => {
                let chosen = chosen.iter().map(|which| {
                    let member = core.member(which)?;
                    Ok((member.info.name.clone(), member))
                });
                chosen.collect::<Result<_, RpcError>>()?
            }
        };
        if !by_name.contains_key(&core.me.name) {
            let text = format!(
                "{} is not among the members of the gather that it calls",
                core.me
            );
            return Err(RpcError::invalid(text));
        }
        Ok(by_name.into_values().collect())
    }

    fn gather(
        &self,
        members: &[Member],
        value: Payload,
        within: Duration,
    ) -> Result<Values, RpcError> {
        let core = self.core();
        let key = core.gathers.next(members.iter().map(participant).collect());
        let leader = &members[0];
        if leader.info.name == core.me.name {
            let waiting = core.gathers.report(&key, &core.me.name, value);
            waiting.park(Instant::now().checked_add(within));
            if !waiting.is_filled() {
                core.gathers.expire(&key, within);
                // If another thread was faster, it is filling the slot now.
                waiting.park(None);
            }
            let verdict = waiting.take();
            let verdict = verdict.expect("only the waiting thread takes the value of its slot");
            return verdict.as_ref().clone().map_err(RpcError::from);
        }
        let within_micros = micros(within);
        let report = Report::write(key, within_micros, value)?;
        let timeout = Timeout::After(within.saturating_add(extra_time(within)));
        let options = CallOptions::new().timeout(timeout);
        let begun = core.begin(leader, GATHER.name(), GATHER.number(), report, options)?;
        let answer = RpcFuture::of_call(InFlight {
            core: core.clone(),
            worker: leader.info.clone(),
            method: GATHER.name(),
            begun,
            forks: Vec::new(),
            read: |_, _, payload| Ok(payload.clone()),
        });
        let values = answer.wait().and_then(|answer| read_answer(&answer));
        values.map_err(|error| {
            let (kind, how) = match error.kind {
                // The worker may report that it stops, or its connection may end first; both mean
                // the same.
                RpcErrorKind::Stopping if !core.is_stopped() => {
                    (RpcErrorKind::PeerLost, "was lost")
                }
                kind @ RpcErrorKind::PeerLost if error.worker.is_some() => (kind, "was lost"),
                kind @ RpcErrorKind::Deadline if error.worker.is_some() => (kind, "did not answer"),
                _ => return error,
            };
            // The call itself failed, so the leader is the missing member.
            let (name, why) = (&leader.info.name, &error.message);
            let message = format!("{name}, the leader of the gather, {how}: {why}");
            let failed = RpcError {
                kind,
                message,
                ..error
            };
            failed.with_worker(leader.info.clone())
        })
    }
}

/// Extra time that a member waits for the leader to name missing members.
fn extra_time(within: Duration) -> Duration {
    (within / 10).clamp(Duration::from_millis(500), Duration::from_secs(1))
}
