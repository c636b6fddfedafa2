//! States and inputs as lines of a trace.

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::participant::Input;

/// An input in one line.
pub(super) fn shown(input: &Input) -> String {
    match input {
        Input::Read(Some(state)) => format!("read {}", brief(state)),
        Input::Written {
            state: Some(state),
            won,
        } => format!("won {won}, {}", brief(state)),
        other => format!("{other:?}"),
    }
}

/// The state in one line.
pub(super) fn brief(state: &RendezvousState) -> String {
    let names = |nodes: Vec<String>| nodes.join(" ");
    format!(
        "round {}{}{}{} in [{}] wait [{}] surplus [{}]",
        state.round,
        if state.complete { " complete" } else { "" },
        if state.closed { " closed" } else { "" },
        state
            .deadline
            .map(|deadline| format!(" deadline {}", deadline.unix_micros() % 1_000_000_000))
            .unwrap_or_default(),
        names(
            state
                .participants
                .iter()
                .map(|(node, rank)| format!("{node}:{rank}"))
                .collect()
        ),
        names(state.wait_list.iter().map(ToString::to_string).collect()),
        names(
            state
                .redundancy_list
                .iter()
                .map(ToString::to_string)
                .collect()
        ),
    )
}
