//! News of a dynamic rendezvous in the reference's form, for a sink that is registered under
//! `dynamic_rendezvous`.

use serde_json::json;

use super::RunFacts;
use crate::AgentEvent;

/// The JSON of one event (no newline), if it is news of the rendezvous.
///
/// Keys are the reference's. `name` is a file and a function, of ours; `local_id` is null, because
/// our nodes have none that the user could know.
pub fn reference_rendezvous(facts: &RunFacts, event: &AgentEvent) -> Option<String> {
    let AgentEvent::RendezvousNews {
        state,
        message,
        endpoint,
        rank,
        error,
        ..
    } = event
    else {
        return None;
    };
    let json = json!({
        "name": "news.rs:Agent.tell_news",
        "run_id": facts.run_id,
        "message": message,
        "hostname": facts.host,
        "pid": std::process::id(),
        "node_state": state.name(),
        "master_endpoint": endpoint,
        "rank": rank.map(|rank| rank.0),
        "local_id": null,
        "error_trace": error.as_deref().unwrap_or_default(),
    });
    Some(json.to_string())
}

#[cfg(test)]
mod tests {
    use rdzv_core::rank::GroupRank;
    use rdzv_core::time::Wall;
    use serde_json::Value;

    use super::*;
    use crate::NodeState;
    use crate::observe::tests::facts;

    #[test]
    fn news_have_the_references_keys() {
        let event = AgentEvent::RendezvousNews {
            at: Wall::default(),
            state: NodeState::Running,
            message: "joined".to_owned(),
            endpoint: "host:29400".to_owned(),
            rank: Some(GroupRank(1)),
            error: None,
        };
        let json = reference_rendezvous(&facts(), &event).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        let mut keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(
            keys.join(" "),
            "error_trace hostname local_id master_endpoint message name node_state pid rank run_id"
        );
        assert_eq!(json["node_state"], "RUNNING");
        assert_eq!(json["rank"], 1);
    }
}
