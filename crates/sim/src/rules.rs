//! Rules that the tests break one at a time.
//!
//! A world that notices no broken rule may be blind.

use rdzv_consensus::ConsensusRule;

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
