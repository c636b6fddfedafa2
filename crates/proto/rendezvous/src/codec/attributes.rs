//! The names of the attributes, in the order they are written.

/// Of the state.
pub(super) mod state {
    pub(crate) const ROUND: &str = "round";
    pub(crate) const COMPLETE: &str = "complete";
    pub(crate) const DEADLINE: &str = "deadline";
    pub(crate) const CLOSED: &str = "closed";
    pub(crate) const PARTICIPANTS: &str = "participants";
    pub(crate) const WAIT_LIST: &str = "wait_list";
    pub(crate) const REDUNDANCY_LIST: &str = "redundancy_list";
    pub(crate) const LAST_HEARTBEATS: &str = "last_heartbeats";

    pub(crate) const ALL: [&str; 8] = [
        ROUND,
        COMPLETE,
        DEADLINE,
        CLOSED,
        PARTICIPANTS,
        WAIT_LIST,
        REDUNDANCY_LIST,
        LAST_HEARTBEATS,
    ];
}

/// Of a node.
pub(super) mod node {
    pub(crate) const ADDR: &str = "addr";
    pub(crate) const PID: &str = "pid";
    pub(crate) const LOCAL_ID: &str = "local_id";

    pub(crate) const ALL: [&str; 3] = [ADDR, PID, LOCAL_ID];
}
