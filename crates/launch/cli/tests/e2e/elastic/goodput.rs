//! Tests of the time of nodes by class, against the workers' own log of steps.

use std::collections::BTreeMap;

use serde_json::Value;

use super::first_agent;
use crate::harness::Ended;
use crate::observe::ledger::seconds_of;

/// Worker that logs the beginning of each step.
///
/// It has a checkpoint every four steps. In each of its first three attempts, it kills the process
/// whose id is the value of the shell variable in `KILLS`, if there is any: itself or its agent.
const WORKER: &str = r#"
i=0; [ -f checkpoint ] && i=$(cat checkpoint)
echo "$(date +%s.%N) init" >> steps
sleep 0.2
while [ $i -lt 16 ]; do
  echo "$(date +%s.%N) $i" >> steps
  read -r up _ < /proc/uptime
  echo "step $i $up" > $RDZV_HEARTBEAT
  sleep 0.2
  [ $((i % 4)) = 3 ] && echo $((i + 1)) > checkpoint
  if [ "$KILLS" ] && [ $i = $((1 + 4 * $(grep -c init steps))) ]; then
    echo "$(date +%s.%N) end" >> steps
    eval "kill -9 $KILLS"
    sleep 1000
  fi
  i=$((i + 1))
done
echo "$(date +%s.%N) end" >> steps
"#;

/// Returns the seconds of new and of repeated steps in a worker's log.
fn logged(ended: &Ended) -> (f64, f64) {
    let text = ended.text("steps");
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    let lines: Vec<(f64, Option<u64>)> = lines
        .map(|(at, step)| (at.parse().unwrap(), step.parse().ok()))
        .collect();
    let (mut new, mut repeated) = (0.0, 0.0);
    // Highest step of the earlier attempts, and of all attempts until now.
    let (mut earlier, mut most) = (None, None);
    for pair in lines.windows(2) {
        let [(at, step), (next, _)] = pair else {
            unreachable!()
        };
        match step {
            None => earlier = most,
            Some(step) if Some(*step) < earlier => repeated += next - at,
            Some(_) => new += next - at,
        }
        most = most.max(*step);
    }
    (new, repeated)
}

fn times(ended: &Ended) -> BTreeMap<String, f64> {
    serde_json::from_value(ended.json("report.json")["seconds"].clone()).unwrap()
}

fn assert_sum_is_wall_time(ended: &Ended, times: &BTreeMap<String, f64>) {
    let events = ended.text("events.jsonl");
    let events: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let at = |event: &Value| seconds_of(&event["time"]);
    let wall = at(events.last().unwrap()) - at(&events[0]);
    let sum: f64 = times.values().sum();
    // The first event follows the start of the agent.
    assert!(
        (sum - wall).abs() <= 0.01 * wall + 0.1,
        "{sum} {wall} {times:?}"
    );
}

/// Checks the time of two nodes; the second one has this code in `KILLS`.
fn check(kills: &str, reason: &str) {
    let flags = [
        "--nnodes=2",
        "--max-restarts=3",
        "--agent-restarts=3",
        "--heartbeat-timeout=step=100",
        "--report=report.json",
        "--events-file=events.jsonl",
    ];
    let point = first_agent();
    let first = point.node(&flags, WORKER).start();
    let second = point.node(&flags, WORKER).env("KILLS", kills).start();
    let [first, second] = [first, second].map(|node| node.wait().expect(0));
    for ended in [&first, &second] {
        assert_sum_is_wall_time(ended, &times(ended));
    }
    let times = times(&second);
    let (new, repeated) = logged(&second);
    let share = |class: &str| times.get(class).copied().unwrap_or(0.0);
    // The agent reads a heartbeat, and notices an exit, a moment after the worker's own time.
    let near = |one: f64, other: f64| (one - other).abs() <= 0.02 * (new + repeated) + 0.1;
    assert!(near(share("running"), new), "{times:?} {new} {repeated}");
    assert!(
        near(share("repeated"), repeated),
        "{times:?} {new} {repeated}"
    );
    assert!(repeated > 0.5, "{repeated}");
    assert!(
        share("starting") > 0.8,
        "each of four attempts starts for 0.2 s: {times:?}"
    );
    let events = second.text("events.jsonl");
    let events = events.lines().map(serde_json::from_str);
    let events: Vec<Value> = events.collect::<Result<_, _>>().unwrap();
    let restarts = events.iter().filter(|event| event["name"] == "restarted");
    let reasons: Vec<&Value> = restarts.map(|event| &event["fields"]["reason"]).collect();
    assert_eq!(reasons, [reason; 3]);
}

#[test]
fn the_time_of_each_node_sums_to_the_wall_time_and_repeats_what_the_workers_repeat() {
    check("$$", "failure");
}

#[test]
fn the_time_of_a_node_whose_agent_is_killed_has_the_same_accuracy() {
    check("$PPID", "agent");
}
