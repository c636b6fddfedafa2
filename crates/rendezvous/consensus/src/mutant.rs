//! Rules of this crate that can be broken on purpose.

/// A broken rule, which the simulation has to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// All members wait equally long before they stand for election.
    EqualPlaces,
    /// A learner votes before it has the log.
    PromotesEmptyLearner,
    /// The leader is removed without handing over.
    RemovesLeader,
    /// A process that starts again has the id of the one before.
    ReusesVoterId,
    /// A heartbeat may commit one entry more than there is.
    GuardIsOffByOne,
    /// Commands are applied when they are appended.
    AppliesUncommitted,
    /// Entries that contradict the leader's are kept.
    KeepsConflictingEntries,
    /// A snapshot claims one command more than it has.
    SnapshotIsAhead,
    /// A snapshot does not have the places of members.
    SnapshotWithoutPlaces,
    /// Questions are confirmed without a majority.
    ConfirmsAlone,
    /// A follower whose connection to the leader closes waits for the timeout as any other.
    RemembersLeader,
    /// A member that has no vote stands for election.
    LearnerCampaigns,
    /// Followers do not leave joint configurations.
    StaysJoint,
    /// Entries cross with the term of their message.
    EntryWithoutTerm,
    /// The driver is not told of commands that were not begun.
    DropsSilently,
    /// A lost snapshot is never sent again.
    SnapshotOnce,
    /// A leader without a majority goes on leading.
    NoCheckQuorum,
    /// Members stand for election without asking first.
    NoPreVote,
    /// A new leader's time begins with its own clock.
    TimeGoesBack,
    /// Time passes twice as fast for the leader.
    TimeIsFast,
    /// The parts of different snapshots are put together.
    MixesSnapshots,
    /// The silence of those that voted is not looked at.
    IgnoresSilence,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::EqualPlaces,
        Self::PromotesEmptyLearner,
        Self::RemovesLeader,
        Self::ReusesVoterId,
        Self::GuardIsOffByOne,
        Self::AppliesUncommitted,
        Self::KeepsConflictingEntries,
        Self::SnapshotIsAhead,
        Self::SnapshotWithoutPlaces,
        Self::ConfirmsAlone,
        Self::RemembersLeader,
        Self::LearnerCampaigns,
        Self::StaysJoint,
        Self::EntryWithoutTerm,
        Self::DropsSilently,
        Self::SnapshotOnce,
        Self::NoCheckQuorum,
        Self::NoPreVote,
        Self::TimeGoesBack,
        Self::TimeIsFast,
        Self::MixesSnapshots,
        Self::IgnoresSilence,
    ];
}
