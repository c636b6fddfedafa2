//! Restarts as spans of OpenTelemetry, for `--otlp` (cargo feature `otlp`).
//!
//! A thread sends the spans, so a slow collector delays only the end of a run, by up to 5 s.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use opentelemetry::trace::{
    Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _};
use rdzv_agent::AgentEvent;
use rdzv_agent::observe::{EventSink, RunFacts};
use rdzv_agent_proto::restart::RestartTimes;
use rdzv_core::time::Wall;
use tracing::warn;

/// Time limit for one request, and for the last requests at the end of a run.
const LIMIT: Duration = Duration::from_secs(5);

/// Path of a collector for spans.
const PATH: &str = "/v1/traces";

/// Sink that sends the spans of each restart to a collector.
pub(super) struct OtlpSpans {
    spans: Option<Sender<Vec<SpanData>>>,
    /// Channel that closes once everything is sent.
    sent: Receiver<()>,
    trace: TraceId,
    run: SpanId,
    began: Option<SystemTime>,
    /// Span of the last restart, and its end, until the first step.
    last: Option<(SpanId, SystemTime)>,
}

impl OtlpSpans {
    /// Starts the thread that sends the spans.
    pub(super) fn start(url: &str, facts: &RunFacts) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(HyperClient::with_default_connector(LIMIT, None))
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(format!("{}{PATH}", url.trim_end_matches('/')))
            .with_timeout(LIMIT)
            .build()
            .map_err(io::Error::other)?;
        let resource = Resource::builder_empty().with_attributes([
            KeyValue::new("service.name", "rdzv"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("host.name", facts.host.to_string()),
            KeyValue::new("rdzv.run_id", facts.run_id.clone()),
            KeyValue::new("rdzv.role", facts.role.clone()),
        ]);
        exporter.set_resource(&resource.build());
        let (spans, waiting) = channel::<Vec<SpanData>>();
        let (done, sent) = channel();
        thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || {
                let mut has_failed = false;
                for batch in waiting {
                    let result = runtime.block_on(exporter.export(batch));
                    if let Err(error) = result
                        && !std::mem::replace(&mut has_failed, true)
                    {
                        warn!("--otlp: cannot send spans: {error}");
                    }
                }
                drop(done);
            })?;
        Ok(Self {
            spans: Some(spans),
            sent,
            trace: TraceId::from(fastrand::u128(1..)),
            run: new_id(),
            began: None,
            last: None,
        })
    }

    fn send(&self, spans: Vec<SpanData>) {
        if let Some(sender) = &self.spans {
            let _ = sender.send(spans);
        }
    }

    fn span(
        &self,
        (id, parent): (SpanId, SpanId),
        name: &'static str,
        (start_time, end_time): (SystemTime, SystemTime),
    ) -> SpanData {
        let (flags, state) = (TraceFlags::SAMPLED, TraceState::NONE);
        SpanData {
            span_context: SpanContext::new(self.trace, id, flags, false, state),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time,
            end_time,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("rdzv").build(),
        }
    }

    fn restarted(&mut self, restart: &RestartTimes) {
        let begin = system(restart.failure_detected) - restart.detect;
        let end = system(restart.worker_start_completed);
        let id = new_id();
        let mut whole = self.span((id, self.run), "restart", (begin, end));
        whole.attributes = vec![KeyValue::new("reason", restart.reason.name())];
        let times = restart.times();
        let times = times.iter().filter_map(|(name, at)| Some((*name, (*at)?)));
        let events = times.map(|(name, at)| Event::new(name, system(at), Vec::new(), 0));
        whole.events.events = events.collect();
        let mut spans = vec![whole];
        let mut from = begin;
        for (name, took) in restart.spans() {
            spans.push(self.span((new_id(), id), name, (from, from + took)));
            from += took;
        }
        self.last = Some((id, end));
        self.send(spans);
    }
}

impl EventSink for OtlpSpans {
    fn record(&mut self, event: &AgentEvent) {
        let at = system(event.at());
        let began = *self.began.get_or_insert(at);
        match event {
            AgentEvent::Restarted { restart, .. } => self.restarted(restart),
            AgentEvent::Step { .. } => {
                if let Some((parent, from)) = self.last.take() {
                    self.send(vec![self.span(
                        (new_id(), parent),
                        "first_step",
                        (from, at),
                    )]);
                }
            }
            AgentEvent::AgentFinal {
                workers_succeeded, ..
            } => {
                let mut run = self.span((self.run, SpanId::INVALID), "run", (began, at));
                if !workers_succeeded {
                    run.status = Status::error("the workers did not succeed");
                }
                self.send(vec![run]);
            }
            _ => {}
        }
    }

    fn finish(&mut self) {
        self.spans = None;
        if self.sent.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let limit = LIMIT.as_secs();
            warn!("--otlp: the collector did not accept the last spans within {limit} s");
        }
    }
}

impl fmt::Debug for OtlpSpans {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OtlpSpans").finish_non_exhaustive()
    }
}

fn new_id() -> SpanId {
    SpanId::from(fastrand::u64(1..))
}

fn system(at: Wall) -> SystemTime {
    let micros = u64::try_from(at.unix_micros()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}
