//! Forming a static group: all workers have a known rank, and all must join.
//!
//! ```text
//!   round ──► my slot ──► all slots ──► names, ids, devices ──► count myself ──► go
//!     ▲          │ taken, or                 (the same verdict      │
//!     └──────────┘ moved to the next round    on every worker)      └─ the last worker says so
//! ```
//!
//! A worker that ends the forming early writes the reason to `go` and then to every empty slot,
//! where the other workers wait. A restarted worker may find its slot taken by its previous
//! incarnation while the group is still forming. The restarted worker then moves all workers to the
//! next round in the same way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_rpc_proto::device::GroupKind;
use rdzv_rpc_proto::directory::{
    DirectoryRound, GroupView, Member, Mismatch, RoundDecision, RoundKind,
};
use rdzv_rpc_proto::worker::WorkerId;
use rdzv_store::{Store, StoreError};

use super::access::{Found, claim, count, find_round, note, peek, remove, replace_round, set};
use super::failure::store_failed;
use super::keys::{Keys, ROUND};
use super::limit::Limit;
use super::note::{Note, Refusal};
use crate::init_method::check_size;
use crate::{RpcError, RpcErrorKind};

/// Longest time that the first worker waits for others to read the refusal.
const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct StaticGroup {
    pub(super) store: Arc<dyn Store>,
    pub(super) round: DirectoryRound,
    pub(super) view: Arc<GroupView>,
}

/// Forms the group; returns when all workers have the same view of it.
///
/// Invalid arguments are rejected before any access to the store.
pub(super) fn form(
    store: Arc<dyn Store>,
    me: Member,
    world_size: u32,
    deadline: Duration,
) -> Result<StaticGroup, RpcError> {
    check_arguments(&me, world_size)?;
    let mut forming = Forming {
        store: &*store,
        me: &me,
        world_size,
        limit: Limit::of(deadline),
        was_moved: false,
        round: None,
    };
    let (round, view) = loop {
        match forming.try_once() {
            Ok(None) => {}
            Ok(Some(formed)) => break formed,
            Err(error) => {
                forming.part(&error);
                return Err(error);
            }
        }
    };
    let view = Arc::new(view);
    Ok(StaticGroup { store, round, view })
}

fn check_arguments(me: &Member, world_size: u32) -> Result<(), RpcError> {
    check_size(None, Some(world_size))?;
    let id = me.info.id;
    if id.0 >= world_size {
        return Err(RpcError::invalid(format!(
            "worker {} has rank {id}, which is not below the world size of {world_size}",
            me.info.name
        )));
    }
    Ok(())
}

struct Forming<'a> {
    store: &'a dyn Store,
    me: &'a Member,
    world_size: u32,
    limit: Limit,
    /// `true` if this worker has moved on from a round that was still forming.
    ///
    /// Another worker that holds this worker's slot in the new round must be alive.
    was_moved: bool,
    round: Option<DirectoryRound>,
}

enum Waited {
    Values(Vec<Bytes>),
    /// Keys that did not appear in time.
    Missing(Vec<String>),
}

impl Forming<'_> {
    /// Tries one round; `None` if the group forms in another round.
    fn try_once(&mut self) -> Result<Option<(DirectoryRound, GroupView)>, RpcError> {
        let kind = RoundKind::Static {
            world_size: self.world_size,
        };
        let found = find_round(self.store, kind)?;
        self.round = Some(found.round);
        let keys = Keys(found.round.epoch);
        let disagreement = match found.decision {
            RoundDecision::Refuse(mismatch @ Mismatch::WorldSize { .. }) => {
                Some(self.differ(mismatch))
            }
            RoundDecision::Refuse(mismatch) => return Err(mismatch.into()),
            _ => None,
        };
        let bid = match &disagreement {
            None => Note::Member(self.me.clone()),
            Some(error) => Note::Refused(self.refusal(error)),
        };
        let (slot, bid) = (keys.member(self.me.info.id), bid.encode());
        let held = claim(self.store, &slot, &bid)?;
        if held[..] != bid[..] {
            self.leave_round(&found, &slot, &held)?;
            return Ok(None);
        }
        if self.is_cleared(&found, keys)? {
            remove(self.store, &slot)?;
            return Ok(None);
        }
        match disagreement {
            None => self.take_part(found.round, keys),
            Some(error) => Err(self.disagree(found.round, &slot, &held, error)?),
        }
    }

    fn is_replaced(&self, found: &Found) -> Result<bool, RpcError> {
        Ok(peek(self.store, ROUND)?.is_none_or(|now| now != found.held))
    }

    /// `true` if this round was formed and has ended since it was found.
    /// Its last worker clears the slots, so no other worker would join. A round whose forming was
    /// aborted has a note with the reason.
    fn is_cleared(&self, found: &Found, keys: Keys) -> Result<bool, RpcError> {
        if !self.is_replaced(found)? {
            return Ok(false);
        }
        let go = note(self.store, &keys.go())?;
        Ok(matches!(go, None | Some(Note::Formed)))
    }

    /// Returns the error for a world size that differs from that of the round.
    fn differ(&self, mismatch: Mismatch) -> RpcError {
        let mut error = RpcError::from(mismatch);
        if let Mismatch::WorldSize { mine, theirs } = mismatch {
            // All workers read this message, so it has to name the worker with the other size.
            error.message = format!(
                "workers disagree on the world size: {} specifies {mine}, but other workers of the \
                 group in this store specify {theirs}; give all workers the same world size",
                self.me.info
            );
        }
        error
    }

    /// Ends the forming of a round that has another world size.
    /// A round that is already formed is left undisturbed.
    fn disagree(
        &self,
        round: DirectoryRound,
        slot: &str,
        held: &[u8],
        error: RpcError,
    ) -> Result<RpcError, RpcError> {
        let error = match peek(self.store, &Keys(round.epoch).go())? {
            Some(_) => error,
            None => self.end(round, error)?,
        };
        self.mark_as_sent(slot, held)?;
        Ok(error)
    }

    /// Marks this worker's slot, so that a retry moves to the next round.
    fn mark_as_sent(&self, slot: &str, held: &[u8]) -> Result<(), RpcError> {
        let informed = self.store.compare_set(slot, held, &self.moved().encode());
        informed
            .map(drop)
            .map_err(|error| store_failed("record that the group was not formed", &error))
    }

    fn moved(&self) -> Note {
        Note::Moved {
            by: self.me.incarnation,
        }
    }

    /// Handles a taken slot before this worker goes to the next round.
    fn leave_round(&mut self, found: &Found, slot: &str, held: &[u8]) -> Result<(), RpcError> {
        let round = found.round;
        match Note::decode(held)? {
            // This worker is late and has not read the refusal yet.
            Note::Refused(refusal) => {
                self.mark_as_sent(slot, held)?;
                return Err(refusal.error());
            }
            Note::Member(holder) => {
                let is_forming = peek(self.store, &Keys(round.epoch).go())?.is_none();
                // The `go` note is also missing while the last worker of a round clears it.
                if is_forming && self.is_replaced(found)? {
                    return Ok(());
                }
                if is_forming && self.was_moved {
                    let message = format!(
                        "two workers in one group have rank {}: {} and {}; start each rank once",
                        self.me.info.id, holder.info.name, self.me.info.name
                    );
                    return Err(self.end(round, RpcError::new(RpcErrorKind::DuplicateId, message))?);
                }
                if is_forming {
                    self.finish(round, &self.moved())?;
                    self.was_moved = true;
                }
            }
            Note::Moved { .. } | Note::Formed => {}
        }
        let next = round.next(RoundKind::Static {
            world_size: self.world_size,
        });
        replace_round(self.store, &found.held, next)?;
        Ok(())
    }

    fn take_part(
        &mut self,
        round: DirectoryRound,
        keys: Keys,
    ) -> Result<Option<(DirectoryRound, GroupView)>, RpcError> {
        let slots: Vec<String> = (0..self.world_size)
            .map(|rank| keys.member(WorkerId(rank)))
            .collect();
        let values = match self.wait_for(&slots)? {
            Waited::Values(values) => values,
            Waited::Missing(missing) => {
                let error = self.nobody_came(&slots, &missing);
                return Err(self.end(round, error)?);
            }
        };
        let mut members = Vec::with_capacity(values.len());
        for value in &values {
            match Note::decode(value)? {
                Note::Member(member) => members.push(member),
                Note::Refused(refusal) => return Err(refusal.error()),
                Note::Moved { .. } | Note::Formed => return self.follow(keys),
            }
        }
        let view = match picture(round.epoch, self.me.info.id, members) {
            Ok(view) => view,
            Err(error) => return Err(self.end(round, error)?),
        };
        match self.wait_for_go(round, keys, &view)? {
            Note::Formed => Ok(Some((round, view))),
            Note::Refused(refusal) => Err(refusal.error()),
            Note::Moved { .. } | Note::Member(_) => self.follow(keys),
        }
    }

    /// Moves to the next round, unless the forming was refused.
    fn follow(&mut self, keys: Keys) -> Result<Option<(DirectoryRound, GroupView)>, RpcError> {
        if let Some(Note::Refused(refusal)) = note(self.store, &keys.go())? {
            return Err(refusal.error());
        }
        self.was_moved = true;
        Ok(None)
    }

    /// Counts this worker as ready, and waits for the others.
    fn wait_for_go(
        &self,
        round: DirectoryRound,
        keys: Keys,
        view: &GroupView,
    ) -> Result<Note, RpcError> {
        let go = keys.go();
        set(self.store, &keys.ready_by(self.me.info.id), b"1")?;
        if count(self.store, &keys.ready())? >= i64::from(self.world_size) {
            return Note::decode(&claim(self.store, &go, &Note::Formed.encode())?);
        }
        match self.wait_for(&[go])? {
            Waited::Values(values) => Note::decode(&values[0]),
            Waited::Missing(_) => {
                let mut silent = Vec::new();
                for member in view.members() {
                    if peek(self.store, &keys.ready_by(member.info.id))?.is_none() {
                        silent.push(member.info.clone());
                    }
                }
                let (waited, all) = (self.limit.elapsed().as_secs_f64(), self.world_size);
                let error = RpcError::late(&silent, |names| {
                    format!(
                        "the RPC group was not formed within {waited:.1} s (init_deadline): of \
                         {all} workers, {names} joined and then sent nothing more; check for \
                         workers that are stopped or have exited"
                    )
                });
                Ok(self.finish(round, &Note::Refused(self.refusal(&error)))?)
            }
        }
    }

    /// Leaves the other workers after the group could not be formed.
    ///
    /// The first worker's process usually hosts the store. The first worker therefore waits up to
    /// `FAREWELL` until the others have read the refusal.
    fn part(&self, error: &RpcError) {
        let Some(round) = self.round else { return };
        if matches!(
            error.kind,
            RpcErrorKind::Store | RpcErrorKind::InvalidArgument
        ) {
            return;
        }
        // This failure matters less than `error`.
        if let Err(failed) = self.see_the_others_off(round, error) {
            tracing::debug!(worker = %self.me.info, %failed, "cannot wait for the other workers");
        }
    }

    fn see_the_others_off(&self, round: DirectoryRound, error: &RpcError) -> Result<(), RpcError> {
        let keys = Keys(round.epoch);
        let informed = count(self.store, &keys.informed())?;
        if self.me.info.id != WorkerId(0) {
            return set(self.store, &keys.informed_count(informed), b"1");
        }
        let RoundKind::Static { world_size } = round.kind else {
            return Ok(());
        };
        let mut others = i64::from(world_size.min(self.world_size));
        if error.kind == RpcErrorKind::Deadline {
            others = 0;
            for rank in 0..world_size {
                let held = note(self.store, &keys.member(WorkerId(rank)))?;
                others += i64::from(matches!(held, Some(Note::Member(_))));
            }
        }
        // The last worker to arrive sets this key; this worker may be the last.
        if informed < others {
            let last = keys.informed_count(others);
            match self.store.wait(&[&last], Some(FAREWELL)) {
                Ok(()) | Err(StoreError::WaitTimeout { .. }) => {}
                Err(error) => {
                    return Err(store_failed("wait for the other workers to leave", &error));
                }
            }
        }
        Ok(())
    }

    fn wait_for(&self, keys: &[String]) -> Result<Waited, RpcError> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let failed = |error: StoreError| store_failed("wait for the workers of the group", &error);
        match self.store.wait(&keys, Some(self.limit.left())) {
            Ok(()) => Ok(Waited::Values(self.store.multi_get(&keys).map_err(failed)?)),
            Err(StoreError::WaitTimeout { missing, .. }) => Ok(Waited::Missing(missing)),
            Err(error) => Err(failed(error)),
        }
    }

    fn nobody_came(&self, slots: &[String], missing: &[String]) -> RpcError {
        // The store may have put a prefix before the keys.
        let is_missing = |slot: &String| missing.iter().any(|key| key.ends_with(slot.as_str()));
        let ranks: Vec<String> = (0..)
            .zip(slots)
            .filter(|(_, slot)| is_missing(slot))
            .map(|(rank, _): (u32, _)| rank.to_string())
            .collect();
        let message = format!(
            "the RPC group was not formed within {:.1} s (init_deadline): of {} workers, {} did \
             not join; check whether {} running with the same store",
            self.limit.elapsed().as_secs_f64(),
            self.world_size,
            match &*ranks {
                [rank] => format!("rank {rank}"),
                ranks => format!("ranks {}", ranks.join(", ")),
            },
            if ranks.len() == 1 {
                "it is"
            } else {
                "they are"
            },
        );
        RpcError::new(RpcErrorKind::Deadline, message)
    }

    fn refusal(&self, error: &RpcError) -> Refusal {
        Refusal::new(&self.me.info, error)
    }

    /// Ends the forming with `error`, unless another worker ended it first.
    fn end(&self, round: DirectoryRound, error: RpcError) -> Result<RpcError, RpcError> {
        let note = Note::Refused(self.refusal(&error));
        Ok(match self.finish(round, &note)? {
            Note::Refused(refusal) => refusal.error(),
            _ => error,
        })
    }

    /// Ends the forming of a round with this note, and wakes the waiting workers.
    /// Returns the note that ended the round; another worker may have written it.
    fn finish(&self, round: DirectoryRound, note: &Note) -> Result<Note, RpcError> {
        let keys = Keys(round.epoch);
        let ours = note.encode();
        let held = claim(self.store, &keys.go(), &ours)?;
        let (true, RoundKind::Static { world_size }) = (held[..] == ours[..], round.kind) else {
            return Note::decode(&held);
        };
        // This includes workers that were given a larger world size than the round has.
        for rank in 0..world_size.max(self.world_size) {
            claim(self.store, &keys.member(WorkerId(rank)), &held)?;
        }
        Note::decode(&held)
    }
}

/// Creates the view of these members, and checks that the members fit together.
fn picture(epoch: u64, me: WorkerId, members: Vec<Member>) -> Result<GroupView, RpcError> {
    let view = GroupView::new(epoch, me, members)?;
    view.check_devices(GroupKind::Static)?;
    Ok(view)
}
