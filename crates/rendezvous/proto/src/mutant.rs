//! Rules of the coordinator, of its recovery, of the [fence](crate::fence) and of groups that agents may join, which can be broken on
//! purpose.

/// A broken rule, which the simulation has to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A round is noted when its participants have been told of it.
    NoteAfterFormed,
    /// The end of a run is not noted.
    EndIsNotNoted,
    /// With a note, half of the participants are enough to go on without the others.
    HalfRestores,
    /// Without a note, those who are missing are not waited for.
    MissingAreLost,
    /// With a note, participants have no time to come back.
    NoWindow,
    /// After a recovery without a note, rounds are numbered as if nothing could have been missed.
    NoJump,
    /// Nobody believes that an agent has ended in place of which another one was started.
    IgnoresSuccessors,
    /// A round is over when all its participants are silent.
    SilenceEndsRounds,
    /// An agent that comes back is not told that all have succeeded, if others that were told have gone.
    SuccessIsTakenBack,
    /// An agent hangs up without a word, as if its process had ended.
    HangsUpInSilence,
    /// The process of an agent has ended when its connection was reset.
    ResetIsAnEnd,
    /// The process of an agent has ended when a proxy has closed its connection.
    ProxyIsTheAgent,
    /// Members of a coordinator at another address are told that their round is over.
    NobodyElsewhere,
    /// The coordinator does not allow for clocks that drift.
    NoDrift,
    /// The coordinator answers without asking the other voters.
    BackedAlone,
    /// Workers are continued without an answer.
    ContinuesAlone,
    /// A new coordinator counts from nothing that voters have heard.
    ForgetsElectors,
    /// A member does not note that the members have changed.
    MembersAreNotNoted,
    /// A process takes over without those that are not in contact.
    MissingAreGone,
    /// A process takes over though another one has applied more.
    AnyoneTakesOver,
    /// A group that follows another one has the number of that.
    NoGroupNumber,
    /// A group that follows another one has the terms of that.
    TermsAgain,
    /// A member that has lost its memory knew nothing.
    LostIsNothing,
    /// Members stay in a group that can never decide again.
    NeverGivesUp,
    /// The only voter announces what is not noted, once it is about to end.
    EndsWithoutNote,
}

impl Mutant {
    /// Those of the coordinator and its recovery.
    pub const RECOVERY: [Self; 13] = [
        Self::NoteAfterFormed,
        Self::EndIsNotNoted,
        Self::HalfRestores,
        Self::MissingAreLost,
        Self::NoWindow,
        Self::NoJump,
        Self::IgnoresSuccessors,
        Self::SilenceEndsRounds,
        Self::SuccessIsTakenBack,
        Self::HangsUpInSilence,
        Self::ResetIsAnEnd,
        Self::ProxyIsTheAgent,
        Self::NobodyElsewhere,
    ];

    /// Those of a group that agents may join.
    pub const OPEN: [Self; 8] = [
        Self::MembersAreNotNoted,
        Self::MissingAreGone,
        Self::AnyoneTakesOver,
        Self::NoGroupNumber,
        Self::TermsAgain,
        Self::LostIsNothing,
        Self::NeverGivesUp,
        Self::EndsWithoutNote,
    ];

    /// Those of the fence, and of those that use it.
    pub const FENCE: [Self; 5] = [
        Self::NoDrift,
        Self::BackedAlone,
        Self::ContinuesAlone,
        Self::ForgetsElectors,
        Self::ResetIsAnEnd,
    ];
}

#[cfg(feature = "mutants")]
std::thread_local! {
    static BROKEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule, on this thread.
#[cfg(feature = "mutants")]
pub fn break_rule(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

#[cfg(feature = "mutants")]
pub(crate) fn is_broken(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

#[cfg(not(feature = "mutants"))]
pub(crate) fn is_broken(_: Mutant) -> bool {
    false
}
