//! Collective calls in flight recorders, and the ranks whose calls differ.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_core::escape::escape;
use rdzv_core::rank::{Rank, intervals};
use serde::{Deserialize, Serialize};

/// Maximum number of calls that the record of a group keeps.
const KEPT: usize = 8;

const MOST_GROUPS: usize = 64;

const LONGEST_TEXT: usize = 120;

/// Process groups of one worker, from its flight recorder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// Path of the file with the whole dump, on the node of the worker.
    pub file: Option<String>,
    /// Groups with the calls around the oldest unfinished one.
    pub groups: Vec<GroupCalls>,
}

/// Collective calls of one worker in one process group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCalls {
    /// Name, description and backend of the group.
    pub group: String,
    /// Number of the last call; 0 before the first one.
    pub last: u64,
    /// Calls by number, in ascending order.
    pub calls: Vec<CollectiveCall>,
}

/// One call of a collective.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveCall {
    /// Number of the call in its group, from 1.
    pub number: u64,
    /// Name of the collective.
    /// The text contains types and sizes if they must be equal on all ranks.
    pub text: String,
    /// `true` if the call has finished on this rank.
    pub finished: bool,
}

#[derive(Deserialize)]
struct Dump {
    #[serde(default)]
    entries: Vec<Entry>,
    #[serde(default)]
    pg_config: BTreeMap<String, Group>,
}

#[derive(Deserialize)]
struct Group {
    desc: String,
}

#[derive(Deserialize)]
struct Entry {
    process_group: (String, String),
    collective_seq_id: u64,
    profiling_name: String,
    state: String,
    retired: bool,
    is_p2p: bool,
    input_sizes: Vec<Vec<i64>>,
    input_dtypes: Vec<String>,
}

/// Reads a dump in JSON of the recorder of one backend (`gloo`, `nccl`).
///
/// # Errors
///
/// Returns an error if the dump has another format.
pub fn read(dump: &[u8], backend: &str) -> serde_json::Result<Vec<GroupCalls>> {
    let Dump { entries, pg_config } = serde_json::from_slice(dump)?;
    let mut groups: BTreeMap<String, Vec<CollectiveCall>> = BTreeMap::new();
    for (name, Group { desc }) in &pg_config {
        // The recorder of gloo lists only the default group, without its name.
        let default = ("0", "default_pg");
        let (name, desc) = if name.is_empty() {
            default
        } else {
            (&**name, &**desc)
        };
        groups.entry(label(name, desc, backend)).or_default();
    }
    for entry in entries.iter().filter(|entry| !entry.is_p2p) {
        let (name, desc) = &entry.process_group;
        let calls = groups.entry(label(name, desc, backend)).or_default();
        let number = entry.collective_seq_id;
        // The operations of a coalesced call share its number.
        if calls.last().is_none_or(|call| call.number < number) {
            // The recorder of gloo never sets the state `completed`.
            let finished = entry.state == "completed" || entry.retired && backend == "gloo";
            calls.push(CollectiveCall {
                number,
                text: entry.text(backend),
                finished,
            });
        }
    }
    let groups = groups.into_iter().take(MOST_GROUPS);
    let kept = groups.map(|(group, mut calls)| {
        let last = calls.last().map_or(0, |call| call.number);
        let oldest = calls.iter().position(|call| !call.finished);
        let oldest = oldest.unwrap_or(calls.len()).saturating_sub(KEPT / 2);
        calls.drain(..oldest.min(calls.len().saturating_sub(KEPT)));
        calls.truncate(KEPT);
        GroupCalls { group, last, calls }
    });
    Ok(kept.collect())
}

fn label(name: &str, desc: &str, backend: &str) -> String {
    shown(&match desc {
        "" | "undefined" => format!("group {name} ({backend})"),
        _ => format!("group {name} ({desc}, {backend})"),
    })
}

/// Escapes a text of the worker, and shortens it.
fn shown(text: &str) -> String {
    escape(text).chars().take(LONGEST_TEXT).collect()
}

impl Entry {
    fn text(&self, backend: &str) -> String {
        let name = &self.profiling_name;
        let name = name.strip_prefix(backend).unwrap_or(name);
        let name = name.trim_start_matches(':');
        // Each rank may send another size, or only one rank sends.
        let differs =
            name.contains("to_all") || name.contains("scatter") && !name.contains("reduce");
        let tensors = self.input_dtypes.iter().zip(&self.input_sizes);
        let tensors: Vec<String> = tensors
            .map(|(dtype, size)| format!("{dtype} {size:?}"))
            .collect();
        if differs || tensors.is_empty() {
            return shown(name);
        }
        shown(&format!("{name} of {}", tensors.join(", ")))
    }
}

/// Rank, its name in sentences, and its flight record.
pub type Recorded<'a> = (Rank, String, &'a FlightRecord);

/// Compares flight records, and names the ranks whose calls differ.
///
/// For each process group, this compares the oldest call that a rank has not finished. Each
/// sentence lists the different calls with their ranks, and the ranks that have not called.
pub fn compare(ranks: &[Recorded<'_>]) -> Vec<String> {
    let groups = ranks.iter().flat_map(|(_, _, record)| &record.groups);
    let groups: BTreeSet<&str> = groups.map(|known| &*known.group).collect();
    let sentences = groups
        .into_iter()
        .filter_map(|group| mismatch(ranks, group));
    sentences.collect()
}

fn mismatch(ranks: &[Recorded<'_>], group: &str) -> Option<String> {
    let members = ranks.iter().filter_map(|rank| {
        let mut groups = rank.2.groups.iter();
        Some((rank, groups.find(|known| known.group == group)?))
    });
    let members: Vec<(&Recorded<'_>, &GroupCalls)> = members.collect();
    let calls = members.iter().flat_map(|(_, known)| &known.calls);
    let unfinished = calls.filter(|call| !call.finished);
    let number = unfinished.map(|call| call.number).min()?;
    let mut actions: BTreeMap<String, Vec<&Recorded<'_>>> = BTreeMap::new();
    for (rank, known) in members {
        let action = match known.calls.iter().find(|call| call.number == number) {
            Some(call) => format!("called {}", call.text),
            None if known.last < number => "did not call it".to_owned(),
            None => continue,
        };
        actions.entry(action).or_default().push(rank);
    }
    let mut actions: Vec<_> = actions.into_iter().collect();
    // Rare actions come first.
    actions.sort_by_key(|(_, ranks)| ranks.len());
    let parts = actions
        .iter()
        .map(|(action, ranks)| format!("{} {action}", names(ranks)));
    let parts: Vec<String> = parts.collect();
    (parts.len() > 1).then(|| format!("collective {number} of {group}: {}", parts.join(", ")))
}

fn names(ranks: &[&Recorded<'_>]) -> String {
    if let [(_, name, _)] = ranks {
        return format!("rank {name}");
    }
    let ranks: Vec<u32> = ranks.iter().map(|(rank, ..)| rank.0).collect();
    format!("ranks {}", intervals(&ranks))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns an entry of PyTorch 2.15, without fields that nothing reads.
    /// A call is written as `NUMBER NAME SIZES`; `!` at the end marks an unfinished one.
    fn entry(group: (&str, &str), backend: &str, call: &str) -> Value {
        let mut words = call.trim_end_matches('!').splitn(3, ' ');
        let mut next = || words.next().unwrap_or_default();
        let (number, name, sizes) = (next().parse::<u64>().unwrap(), next(), next());
        let sizes: Vec<Vec<i64>> = serde_json::from_str(&format!("[{sizes}]")).unwrap();
        json!({
            "process_group": [group.0, group.1], "collective_seq_id": number,
            "profiling_name": format!("{backend}:{name}"), "is_p2p": name == "send",
            "state": "scheduled", "retired": !call.ends_with('!'),
            "input_dtypes": vec!["Float"; sizes.len()], "input_sizes": sizes,
            "timeout_ms": 1_800_000, "thread_name": "python",
        })
    }

    fn of_ranks(groups: impl IntoIterator<Item = Vec<GroupCalls>>) -> Vec<String> {
        let record = |groups| FlightRecord { file: None, groups };
        let records: Vec<_> = groups.into_iter().map(record).collect();
        let ranks = (0..).zip(&records);
        let ranks = ranks.map(|(rank, record)| (Rank(rank), rank.to_string(), record));
        compare(&ranks.collect::<Vec<_>>())
    }

    /// Compares ranks with these calls of gloo, separated by semicolons.
    fn compared(ranks: &[&str]) -> Vec<String> {
        of_ranks(ranks.iter().map(|calls| {
            let calls = calls.split(';').filter(|call| !call.is_empty());
            let entries = calls.map(|call| entry(("0", "default_pg"), "gloo", call));
            let mut dump = json!({"version": "2.10", "pg_config": {"": {"desc": "", "name": ""}}});
            let entries: Vec<Value> = entries.collect();
            if !entries.is_empty() {
                dump["entries"] = entries.into();
            }
            read(dump.to_string().as_bytes(), "gloo").unwrap()
        }))
    }

    #[test]
    fn the_oldest_call_that_a_rank_waits_in_is_compared() {
        let one = "1 all_reduce [4,5]";
        let table: &[(&[&str], &str)] = &[
            // All ranks are in the same call, or in none.
            (&["2 all_reduce [9]!", "2 all_reduce [9]!"], ""),
            (&[one, one, ""], ""),
            // A rank has not called: later than the others, or never.
            (
                &["1 all_reduce [4,5];2 all_reduce [9]!", one],
                "2: rank 0 called all_reduce of Float [9], rank 1 did not call it",
            ),
            (
                &["", "1 barrier!", "1 barrier!", ""],
                "1: ranks 1-2 called barrier, ranks 0, 3 did not call it",
            ),
            // Other collectives, sizes and numbers of tensors.
            (
                &["1 all_reduce [9]!", "1 barrier!", "1 all_reduce [9]!"],
                "1: rank 1 called barrier, ranks 0, 2 called all_reduce of Float [9]",
            ),
            (
                &["1 all_reduce [9]!", "1 all_reduce [8]!"],
                "1: rank 1 called all_reduce of Float [8], rank 0 called all_reduce of Float [9]",
            ),
            (
                &["1 all_reduce [9],[1]!", "1 all_reduce [9]!", ""],
                "1: rank 1 called all_reduce of Float [9], rank 0 called all_reduce of Float [9], \
                 Float [1], rank 2 did not call it",
            ),
            // Rank 0 has sent its broadcast, and is in the next call.
            (
                &["1 broadcast [9];2 all_reduce [1]!", "1 all_reduce [1]!"],
                "1: rank 1 called all_reduce of Float [1], rank 0 called broadcast of Float [9]",
            ),
            // Sizes may differ in these collectives, and messages between two ranks do not count.
            (&["1 all_to_all [9]!", "1 all_to_all [8]!"], ""),
            (&["1 scatter [9],[9]!", "1 scatter !"], ""),
            (&["1 send [9]!", ""], ""),
        ];
        for (ranks, expected) in table {
            let expected = match *expected {
                "" => vec![],
                text => vec![format!(
                    "collective {}",
                    text.replacen(':', " of group 0 (default_pg, gloo):", 1)
                )],
            };
            assert_eq!(compared(ranks), expected, "{ranks:?}");
        }
    }

    #[test]
    fn the_record_of_a_long_run_is_short_and_contains_the_oldest_unfinished_call() {
        let calls = |unfinished: u64| {
            let call = |number| {
                format!(
                    "{number} all_reduce [9]{}",
                    if number < unfinished { "" } else { "!" }
                )
            };
            let entries: Vec<Value> = (1001..=3000)
                .map(|number| entry(("7", "undefined"), "gloo", &call(number)))
                .collect();
            let groups = read(json!({"entries": entries}).to_string().as_bytes(), "gloo").unwrap();
            let [GroupCalls { group, last, calls }] = &groups[..] else {
                panic!("{groups:?}");
            };
            assert_eq!((&**group, *last), ("group 7 (gloo)", 3000));
            calls.iter().map(|call| call.number).collect::<Vec<_>>()
        };
        let from = |first: u64| (first..first + KEPT as u64).collect::<Vec<_>>();
        assert_eq!(calls(9999), from(2993));
        assert_eq!(calls(2999), from(2993));
        assert_eq!(calls(1500), from(1496));
        assert_eq!(calls(1001), from(1001));
    }

    #[test]
    fn each_group_and_backend_is_compared_separately_and_texts_are_escaped() {
        let dump = |entries: Vec<Value>| {
            let config = json!({"3": {"desc": "mesh", "name": "3", "ranks": "[0, 1]"}});
            let dump = json!({"entries": entries, "pg_config": config});
            read(dump.to_string().as_bytes(), "nccl").unwrap()
        };
        let mut waits = entry(("3", "mesh"), "nccl", "5 all_gather [2]!");
        waits["retired"] = true.into();
        let strange = entry(("4", "a\nb"), "nccl", "1 \u{1b}[31m!");
        let first = dump(vec![waits, strange]);
        let strange = first.last().unwrap().clone();
        // Rank 2 is not in the group.
        assert_eq!(
            of_ranks([first, dump(vec![]), vec![]]),
            [
                "collective 5 of group 3 (mesh, nccl): rank 0 called all_gather of Float [2], \
                 rank 1 did not call it"
            ]
        );
        assert_eq!(strange.group, "group 4 (a\\nb, nccl)");
        assert_eq!(strange.calls[0].text, "\\u{1b}[31m");
        assert!(read(b"", "gloo").is_err() && read(b"[1]", "gloo").is_err());
    }
}
