//! Rules of the machines of this crate; a simulation breaks one at a time.

/// A rule of a coordinator, of an agent, of a fence or of a voter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A round is recorded before its participants are notified of it.
    RecordsBeforeNotice,
    /// The end of a run is recorded.
    EndIsRecorded,
    /// With a record, exactly half of the participants is no majority.
    MostRestore,
    /// Without a record, the coordinator waits for participants that are missing.
    MissingAreAwaited,
    /// With a record, participants have time to reattach.
    WindowIsKept,
    /// Without a record, round numbers leave room for unknown rounds.
    NumbersJump,
    /// A successor proves that the agent before it has ended.
    SuccessorsProve,
    /// A round is not over because all its participants are silent.
    SilenceIsNoEnd,
    /// An agent that reattaches late learns that all agents succeeded.
    SuccessIsKept,
    /// A live agent sends `Detach` before it closes its connection.
    DetachIsSent,
    /// A reset of a connection does not prove that the agent's process has ended.
    ResetProvesNothing,
    /// A connection that a proxy closes does not prove that the agent has ended.
    ProxyProvesNothing,
    /// A coordinator at another address may still be running.
    OthersMayCoordinate,
    /// The coordinator allows for clocks that drift.
    ClocksDrift,
    /// An agent that may have a lease is not lost before the lease ends.
    ///
    /// This holds even if no record mentions a fence.
    LeasesAreAwaited,
    /// The coordinator answers a lease after it has asked the other voters.
    VotersConfirm,
    /// Suspended workers continue only after an answer.
    AnswersContinue,
    /// A new coordinator counts silence from the last contact of its electors.
    ElectorsCount,
    /// A member records each change of the members.
    MembersAreRecorded,
    /// A process takes over only if all members are in contact or have ended.
    MissingBlock,
    /// Only the process that has applied the most log entries takes over.
    NewestTakesOver,
    /// A group that follows another one has a higher number.
    GroupsAreNumbered,
    /// A group that follows another one has higher terms.
    TermsGoOn,
    /// A member that has lost its memory may have known a later round.
    LostMayHaveKnown,
    /// Members leave a group that can never decide again.
    LostGroupsAreLeft,
    /// In a round of the same size, nodes keep their ranks.
    RanksStick,
    /// A spare joins when the round is no longer full.
    SparesStepIn,
    /// Nodes of the last round come before other waiting nodes.
    FormerComeFirst,
    /// The only voter announces nothing unrecorded, even while it ends.
    LastVoterRecords,
}
