//! Outage of a shared state, as the agents of a run see it.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

#[allow(dead_code, reason = "each program uses a part of it")]
mod support;

use std::fmt;
use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::ident::RunId;
use rdzv_rendezvous::dynamic::{
    Driver, DriverOptions, Notice, SharedState, StateToken, Written, node,
};
use rdzv_rendezvous::{RendezvousBackend as _, RendezvousError};
use rdzv_rendezvous_proto::Settings;
use rdzv_store::{HashStore, Store};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

const LONG: Duration = Duration::from_secs(30);

/// State in this process, whose answers can be delayed.
#[derive(Clone, Default)]
struct Holding {
    state: Arc<Mutex<(u64, Option<Bytes>)>>,
    held: Arc<(Mutex<bool>, Condvar)>,
    rounds: Arc<HashStore>,
}

impl Holding {
    fn hold(&self, hold: bool) {
        *self.held.0.lock().unwrap() = hold;
        self.held.1.notify_all();
    }

    fn pass(&self) {
        let held = self.held.0.lock().unwrap();
        drop(self.held.1.wait_while(held, |held| *held).unwrap());
    }

    fn now(&self) -> Option<(Bytes, StateToken)> {
        let state = self.state.lock().unwrap();
        let (version, value) = &*state;
        let token = StateToken(version.to_be_bytes().to_vec());
        value.clone().map(|value| (value, token))
    }
}

impl SharedState for Holding {
    fn name(&self) -> &str {
        "holding"
    }

    fn get(&mut self) -> Result<Option<(Bytes, StateToken)>, RendezvousError> {
        self.pass();
        Ok(self.now())
    }

    fn set(
        &mut self,
        state: &[u8],
        token: Option<&StateToken>,
    ) -> Result<Written, RendezvousError> {
        self.pass();
        let before = self.now().map(|(_, token)| token.0);
        let won = before == token.map(|token| token.0.clone());
        if won {
            let mut held = self.state.lock().unwrap();
            *held = (held.0 + 1, Some(Bytes::copy_from_slice(state)));
        }
        let now = self.now();
        Ok(Written { now, won })
    }

    fn watch(&mut self, _: Arc<dyn Fn(Notice) + Send + Sync>) -> Result<bool, RendezvousError> {
        Ok(false)
    }

    fn gives_up_after(&self) -> Duration {
        Duration::from_secs(90)
    }

    fn round_store(&self, _: u64) -> Result<Arc<dyn Store>, RendezvousError> {
        Ok(Arc::clone(&self.rounds) as _)
    }

    fn local_address(&self) -> Option<IpAddr> {
        None
    }

    fn endpoint(&self) -> String {
        "the store h:1".to_owned()
    }
}

/// Subscriber that passes warnings to a channel.
struct Warnings(Mutex<Sender<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let _nobody_listens_any_more = self.0.lock().unwrap().send(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_store_that_is_away_is_said_within_three_seconds_and_when_it_is_back() {
    let (sender, warnings) = channel();
    tracing::subscriber::set_global_default(Warnings(Mutex::new(sender))).unwrap();
    let store = Holding::default();
    let options = DriverOptions {
        run_id: RunId::new("job"),
        settings: Settings::new(1, 1),
        me: node::describe("127.0.0.1"),
        timeout: LONG,
        policy: rdzv_store::StorePolicy::default(),
    };
    let mut driver = Driver::start(Box::new(store.clone()), options).unwrap();
    driver.join(&support::member()).unwrap();
    let began = Instant::now();
    store.hold(true);
    let line = warnings.recv_timeout(LONG).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(2500), "{line}");
    assert_eq!(
        line,
        "[job] the store h:1 has not answered for 3 s; the workers of this node continue, but no \
         other node can join or leave; retrying for 88 s more; then the run ends on this node"
    );
    store.hold(false);
    let line = warnings.recv_timeout(LONG).unwrap();
    assert!(
        line.starts_with("[job] the store h:1 answers again after "),
        "{line}"
    );
    assert!(driver.shutdown());
}
