//! The trace of a job in the format of ui.perfetto.dev.
//!
//! The format is a protobuf: `Trace.packet` (1) with a `track_descriptor` (60), or with a
//! `timestamp` (8) in nanoseconds and a `track_event` (11).

use rdzv_agent::observe::TimelineSpan;

use super::job::Job;

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;

/// Number of the sequence of packets.
const SEQUENCE: u64 = 1;

/// Returns the trace: a track for each node, and below it one for each rank.
pub(super) fn trace(job: &Job) -> Vec<u8> {
    let mut packets = Vec::new();
    let mut events = Vec::new();
    let spans = || job.agents.values().flat_map(|agent| &agent.report.spans);
    let last = spans()
        .map(|span| span.end.unwrap_or(span.begin))
        .fold(0.0, f64::max);
    for (node, agent) in (1_u64..).zip(job.agents.values()) {
        let name = job.node_name(agent);
        packets.push(track(node << 32, None, &name));
        let mut ranks: Vec<u32> = agent.report.spans.iter().filter_map(|it| it.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        for rank in ranks {
            let id = (node << 32) + 1 + u64::from(rank);
            packets.push(track(id, Some(node << 32), &format!("rank {rank}")));
        }
        for span in &agent.report.spans {
            let id = (node << 32) + span.rank.map_or(0, |rank| 1 + u64::from(rank));
            let end = span.end.unwrap_or(last);
            if end > span.begin {
                events.push((nanoseconds(span.begin), 1, SLICE_BEGIN, id, Some(span)));
                events.push((nanoseconds(end), 0, SLICE_END, id, None));
            } else {
                events.push((nanoseconds(span.begin), 2, INSTANT, id, Some(span)));
            }
        }
    }
    // A slice ends before the next one begins.
    events.sort_by_key(|(at, order, ..)| (*at, *order));
    for (at, _, kind, id, span) in events {
        packets.push(event(at, kind, id, span));
    }
    let mut trace = Vec::new();
    packets
        .iter()
        .for_each(|packet| bytes(&mut trace, 1, packet));
    trace
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64 * 1000
}

fn track(id: u64, parent: Option<u64>, name: &str) -> Vec<u8> {
    let mut descriptor = Vec::new();
    number(&mut descriptor, 1, id);
    bytes(&mut descriptor, 2, name.as_bytes());
    if let Some(parent) = parent {
        number(&mut descriptor, 5, parent);
    }
    let mut packet = Vec::new();
    bytes(&mut packet, 60, &descriptor);
    number(&mut packet, 10, SEQUENCE);
    packet
}

fn event(at: u64, kind: u64, track: u64, span: Option<&TimelineSpan>) -> Vec<u8> {
    let mut event = Vec::new();
    number(&mut event, 9, kind);
    number(&mut event, 11, track);
    if let Some(span) = span {
        let category = if span.is_bad { "failure" } else { "job" };
        bytes(&mut event, 22, category.as_bytes());
        bytes(&mut event, 23, span.name.as_bytes());
    }
    let mut packet = Vec::new();
    number(&mut packet, 8, at);
    bytes(&mut packet, 11, &event);
    number(&mut packet, 10, SEQUENCE);
    packet
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field of the wire type 0.
fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

/// Appends a field of the wire type 2.
fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}
