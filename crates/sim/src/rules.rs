//! Rules that the tests break one at a time.
//!
//! A world that notices no broken rule may be blind.

use rdzv_consensus::ConsensusRule;
use rdzv_rendezvous_proto::Rule;

/// Rules of a consensus group.
pub const CONSENSUS: [ConsensusRule; 22] = [
    ConsensusRule::VotersWaitInTurn,
    ConsensusRule::LearnersHaveTheLog,
    ConsensusRule::LeadersHandOver,
    ConsensusRule::IdsAreNew,
    ConsensusRule::CommitsAreBounded,
    ConsensusRule::OnlyCommittedIsApplied,
    ConsensusRule::ConflictsAreReplaced,
    ConsensusRule::SnapshotsAreExact,
    ConsensusRule::SnapshotsHaveIndexes,
    ConsensusRule::MajorityConfirms,
    ConsensusRule::ClosedLeaderIsForgotten,
    ConsensusRule::OnlyVotersCampaign,
    ConsensusRule::FollowersLeaveJoint,
    ConsensusRule::EntriesHaveTerms,
    ConsensusRule::DropsAreReported,
    ConsensusRule::SnapshotsAreResent,
    ConsensusRule::CheckQuorum,
    ConsensusRule::PreVote,
    ConsensusRule::TimeGoesOn,
    ConsensusRule::TimeIsSteady,
    ConsensusRule::SnapshotsAreWhole,
    ConsensusRule::SilenceIsReported,
];

/// Rules of a coordinator and of its recovery.
pub const RECOVERY: [Rule; 13] = [
    Rule::RecordsBeforeNotice,
    Rule::EndIsRecorded,
    Rule::MostRestore,
    Rule::MissingAreAwaited,
    Rule::WindowIsKept,
    Rule::NumbersJump,
    Rule::SuccessorsProve,
    Rule::SilenceIsNoEnd,
    Rule::SuccessIsKept,
    Rule::DetachIsSent,
    Rule::ResetProvesNothing,
    Rule::ProxyProvesNothing,
    Rule::OthersMayCoordinate,
];

/// Rules of a group that agents may join.
pub const OPEN: [Rule; 8] = [
    Rule::MembersAreRecorded,
    Rule::MissingBlock,
    Rule::NewestTakesOver,
    Rule::GroupsAreNumbered,
    Rule::TermsGoOn,
    Rule::LostMayHaveKnown,
    Rule::LostGroupsAreLeft,
    Rule::LastVoterRecords,
];

/// Rules of the fence and of its users.
pub const FENCE: [Rule; 6] = [
    Rule::LeasesAreAwaited,
    Rule::ClocksDrift,
    Rule::VotersConfirm,
    Rule::AnswersContinue,
    Rule::ElectorsCount,
    Rule::ResetProvesNothing,
];
