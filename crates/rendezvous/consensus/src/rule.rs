//! Rules of this crate, which the simulation breaks one at a time.

/// A rule of a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsensusRule {
    /// Each voter waits a different time before it campaigns.
    VotersWaitInTurn,
    /// A learner becomes a voter only when it has almost the whole log.
    LearnersHaveTheLog,
    /// A leader hands over before it is removed.
    LeadersHandOver,
    /// A restarted process has a new id.
    ///
    /// The process that draws the id follows this rule.
    IdsAreNew,
    /// A heartbeat commits no more entries than the log has.
    CommitsAreBounded,
    /// A command is applied when it is committed, not when it is appended.
    OnlyCommittedIsApplied,
    /// The leader's entries replace entries that contradict them.
    ConflictsAreReplaced,
    /// A snapshot claims only the commands that it has.
    SnapshotsAreExact,
    /// A snapshot contains the voter indexes.
    SnapshotsHaveIndexes,
    /// A question is confirmed by a majority.
    MajorityConfirms,
    /// A follower that loses the connection to the leader campaigns immediately.
    ClosedLeaderIsForgotten,
    /// A member without a vote does not campaign.
    OnlyVotersCampaign,
    /// Followers leave joint configurations.
    FollowersLeaveJoint,
    /// Each entry has its term in a message.
    EntriesHaveTerms,
    /// The driver is notified of each command that was not begun.
    DropsAreReported,
    /// A lost snapshot is sent again.
    SnapshotsAreResent,
    /// A leader without a majority steps down.
    CheckQuorum,
    /// A member asks for a vote only after it has asked whether it would get one.
    PreVote,
    /// The time of a new leader begins with the time of the log.
    TimeGoesOn,
    /// The leader's time advances at the rate of its clock.
    TimeIsSteady,
    /// A snapshot is built from the parts of one snapshot.
    SnapshotsAreWhole,
    /// A vote reports the time since the voter last received from a leader.
    SilenceIsReported,
}
