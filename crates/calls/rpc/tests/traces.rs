//! Tests of spans and counters of calls.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use rdzv_rpc::{CallContext, Method, Methods, RpcAgent, RpcError, blocking};
use rdzv_store::{HashStore, Store};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, SubscriberExt};

const ASYNC: Method<u32, u32> = Method::new("traces.async");
const BLOCKING: Method<u32, u32> = Method::new("traces.blocking");

type Fields = BTreeMap<String, String>;

/// Recorded spans: id, name, fields.
/// Ids are reused, so only the last span of an id counts.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(u64, String, Fields)>>>);

struct Reading<'a>(&'a mut Fields);

impl Visit for Reading<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let name = attributes.metadata().name();
        if name.starts_with("rpc.") {
            let mut fields = Fields::new();
            attributes.record(&mut Reading(&mut fields));
            let key = id.into_u64();
            self.0
                .lock()
                .expect("no thread panics with the spans")
                .push((key, name.to_owned(), fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().expect("no thread panics with the spans");
        let last = spans.iter_mut().rfind(|(of, ..)| *of == id.into_u64());
        if let Some((_, _, fields)) = last {
            values.record(&mut Reading(fields));
        }
    }
}

fn next(context: &CallContext) -> u32 {
    context.agent().me().id.0 + 1
}

fn methods() -> Methods {
    Methods::new()
        .with(ASYNC, async |context: CallContext, steps: u32| {
            if steps == 0 {
                return Ok::<_, RpcError>(0);
            }
            let call = context.agent().call(next(&context), BLOCKING, &(steps - 1));
            Ok(call.await? + 1)
        })
        .with(
            BLOCKING,
            blocking(|context: CallContext, steps: u32| {
                if steps == 0 {
                    return Ok::<_, RpcError>(0);
                }
                let agent = context.agent();
                Ok(agent.call(next(&context), ASYNC, &(steps - 1)).wait()? + 1)
            }),
        )
}

/// The only test of this program: only a global subscriber sees all threads.
#[test]
fn a_trace_goes_through_all_workers_and_what_is_counted_is_what_was_called() {
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let agents: Vec<RpcAgent> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let builder = RpcAgent::builder(format!("w{rank}")).rank(rank);
                    let builder = builder.world_size(3).store(store).methods(methods());
                    builder.connect().unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for _ in 0..2 {
        assert_eq!(agents[0].call(1, ASYNC, &1).wait(), Ok(1));
    }
    let spans = spans.0.lock().unwrap().clone();
    let mut traces: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (_, name, fields) in &spans {
        let of = |field: &str| {
            fields
                .get(field)
                .unwrap_or_else(|| panic!("{field} of {fields:?}"))
        };
        let numbers = [
            "span",
            "bytes_out",
            "bytes_in",
            "queue_micros",
            "run_micros",
        ];
        for number in numbers {
            of(number).parse::<u64>().unwrap();
        }
        let said = format!("{name} {} {}", of("method"), of("worker"));
        traces.entry(of("trace")).or_default().push(said);
    }
    assert_eq!(traces.len(), 2, "{traces:?}");
    for mut said in traces.into_values() {
        said.sort();
        assert_eq!(
            said,
            [
                "rpc.client traces.async w1",
                "rpc.client traces.blocking w2",
                "rpc.server traces.async w0",
                "rpc.server traces.blocking w1",
            ]
        );
    }
    let counted: Vec<(u64, u64)> = agents
        .iter()
        .map(|agent| (agent.traffic().calls, agent.traffic().served))
        .collect();
    assert_eq!(counted, [(2, 0), (2, 2), (0, 2)]);
}
