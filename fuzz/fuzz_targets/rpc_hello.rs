//! Hostile bytes as the first message of a peer.
//!
//! Reading them does not panic. A message that can be read can be written, and then reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdzv_rpc_proto::frame::hello::{Accepted, Hello};
use rdzv_trust::token::{Role, transcript};

fuzz_target!(|data: &[u8]| {
    if let Ok(accepted) = Accepted::from_bytes(data) {
        assert_eq!(Accepted::from_bytes(&accepted.to_bytes()), Ok(accepted));
    }
    // Two peers, so that one may say the same as the other or nearly so.
    let (first, second) = data.split_at(data.len() / 2);
    for bytes in [data, first, second] {
        if let Ok(hello) = Hello::from_bytes(bytes) {
            assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
        }
    }
    let (Ok(ours), Ok(theirs)) = (Hello::from_bytes(first), Hello::from_bytes(second)) else {
        return;
    };
    assert_eq!(
        ours.check_peer(&theirs).is_ok(),
        theirs.check_peer(&ours).is_ok()
    );
    assert_eq!(
        ours.check_group(&theirs).is_ok(),
        ours.group == theirs.group
    );
    assert_eq!(
        ours.check_worker(&theirs.worker).is_ok(),
        ours.worker == theirs.worker
    );
    let mine = transcript(Role::Connector, first, second);
    assert_ne!(mine, transcript(Role::Acceptor, first, second));
    assert_ne!(mine, transcript(Role::Acceptor, second, first));
});
