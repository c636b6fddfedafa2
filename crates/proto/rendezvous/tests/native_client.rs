//! An agent's side of native rendezvous.

use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator::wire::{Event, Refusal};
use rdzv_rendezvous_proto::native_client::{Failure, Input, NativeClient, Output};
use rdzv_rendezvous_proto::{NodeDesc, Settings};

fn tell(client: &mut NativeClient, input: Input<'_>) -> Vec<Output> {
    client.handle(Now::default(), input);
    std::iter::from_fn(|| client.poll_output()).collect()
}

fn hear(client: &mut NativeClient, event: &Event) -> Vec<Output> {
    let mut bytes = Vec::new();
    event.write(&mut bytes);
    tell(client, Input::Bytes(&bytes))
}

#[test]
fn a_run_that_ends_before_the_workers_could_meet_ends_the_join() {
    let me = NodeDesc {
        addr: "b".to_owned(),
        pid: 1,
        local_id: 0,
    };
    let mut client = NativeClient::new(Now::default(), 1, "run", me, Settings::new(2, 2));
    let join = Input::Join {
        role: "default",
        local_world_size: 1,
    };
    assert!(matches!(tell(&mut client, join)[..], [Output::Send(_)]));
    let formed = Event::Formed {
        round: 0,
        rank: 1,
        world_size: 2,
        assignment: None,
    };
    assert_eq!(hear(&mut client, &formed), []);
    assert_eq!(
        hear(&mut client, &Event::Closed),
        [Output::NotJoined(Failure::Refused(Refusal::Closed))]
    );
}
