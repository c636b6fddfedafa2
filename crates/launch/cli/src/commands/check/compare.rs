//! Comparison of the facts of all nodes. Pure.
//!
//! A finding is a fact that can make a job fail, or its logs misleading.

use std::collections::BTreeMap;

use super::facts::Facts;

/// Largest accepted difference of a clock, in seconds.
///
/// With a larger difference, the order of events in the logs of several nodes can be wrong.
const CLOCKS_WITHIN: f64 = 2.0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) node: String,
    pub(super) text: String,
}

/// Observations of one node about the other nodes.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Seen {
    /// Nodes that this node could not reach, each with the reason.
    pub(super) unreachable: BTreeMap<String, String>,
    /// Clock in Unix seconds, read by all nodes at about the same time.
    pub(super) clock: f64,
}

/// Returns the problems of one node alone. `least_free` is in bytes.
pub(super) fn alone(facts: &Facts, least_free: u64) -> Vec<Finding> {
    let mut texts = Vec::new();
    if let Err(reason) = &facts.python {
        texts.push(format!("Python: {reason}"));
    }
    for (path, free) in &facts.disks {
        match free {
            Err(reason) => texts.push(format!("{}: {reason}", path.display())),
            Ok(free) if *free < least_free => texts.push(format!(
                "{}: {} MiB are free, {} MiB are required",
                path.display(),
                free >> 20,
                least_free >> 20
            )),
            Ok(_) => {}
        }
    }
    texts.extend(facts.gpu_problems.iter().cloned());
    let finding = |text| Finding {
        node: facts.node.clone(),
        text,
    };
    texts.into_iter().map(finding).collect()
}

/// Returns the problems that matter only if there are several nodes.
///
/// `seen` contains the observations by node name. A node that became silent is missing.
pub(super) fn together(all: &[Facts], seen: &BTreeMap<String, Seen>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for facts in all {
        let of = |text| Finding {
            node: facts.node.clone(),
            text,
        };
        match &facts.addresses {
            Err(reason) => findings.push(of(format!("its own name has no address: {reason}"))),
            Ok(list) if !list.is_empty() && list.iter().all(|address| is_loopback(address)) => {
                findings.push(of(format!(
                    "its own name resolves to {}, which other nodes cannot reach",
                    list[0]
                )));
            }
            Ok(_) => {}
        }
        match seen.get(&facts.node) {
            None => findings.push(of("it was lost during the check".to_owned())),
            Some(seen) => findings.extend(
                seen.unreachable
                    .iter()
                    .map(|(node, reason)| of(format!("it cannot reach {node}: {reason}"))),
            ),
        }
    }
    let python = |facts: &Facts| facts.python.clone().unwrap_or_default();
    findings.extend(outliers(all, "rdzv", |facts| facts.rdzv.clone()));
    findings.extend(outliers(all, "Python", |facts| python(facts).version));
    findings.extend(outliers(all, "PyTorch", |facts| python(facts).torch));
    findings.extend(outliers(all, "GPUs", |facts| facts.gpus.to_string()));
    findings.extend(clocks(seen));
    findings
}

fn is_loopback(address: &str) -> bool {
    let parsed: Result<std::net::IpAddr, _> = address.parse();
    parsed.is_ok_and(|address| address.is_loopback())
}

/// Returns the nodes whose value differs from the most frequent one.
fn outliers(all: &[Facts], what: &str, value: impl Fn(&Facts) -> String) -> Vec<Finding> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for facts in all {
        *counts.entry(value(facts)).or_default() += 1;
    }
    let Some((usual, _)) = counts.iter().max_by_key(|(_, count)| **count) else {
        return Vec::new();
    };
    let shown = |value: &str| match value {
        "" => "none".to_owned(),
        value => value.to_owned(),
    };
    let others = all.iter().filter(|facts| value(facts) != *usual);
    others
        .map(|facts| Finding {
            node: facts.node.clone(),
            text: format!(
                "{what}: {}, but other nodes have {}",
                shown(&value(facts)),
                shown(usual)
            ),
        })
        .collect()
}

/// Returns the nodes whose clocks differ too much from the median.
fn clocks(seen: &BTreeMap<String, Seen>) -> Vec<Finding> {
    let mut times: Vec<f64> = seen.values().map(|seen| seen.clock).collect();
    times.sort_by(f64::total_cmp);
    let Some(middle) = times.get(times.len() / 2) else {
        return Vec::new();
    };
    let far = seen.iter().filter_map(|(node, seen)| {
        let ahead = seen.clock - middle;
        (ahead.abs() > CLOCKS_WITHIN).then(|| Finding {
            node: node.clone(),
            text: format!(
                "its clock is {:.1} s {}",
                ahead.abs(),
                if ahead > 0.0 { "ahead" } else { "behind" }
            ),
        })
    });
    far.collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::facts::Python;
    use super::*;

    fn node(name: &str) -> Facts {
        Facts {
            node: name.to_owned(),
            rdzv: "1".to_owned(),
            python: Ok(Python {
                path: "/python3".to_owned(),
                version: "3.11.7".to_owned(),
                torch: "2.15.0".to_owned(),
            }),
            disks: BTreeMap::from([(PathBuf::from("/tmp"), Ok(5 << 30))]),
            gpus: 8,
            gpu_problems: Vec::new(),
            gpu_names: String::new(),
            addresses: Ok(vec!["10.0.0.1".to_owned()]),
            port: 1,
        }
    }

    fn seen(clocks: [(&str, f64); 3]) -> BTreeMap<String, Seen> {
        let one = |(node, clock): (&str, f64)| {
            let seen = Seen {
                clock,
                ..Seen::default()
            };
            (node.to_owned(), seen)
        };
        clocks.into_iter().map(one).collect()
    }

    fn texts(findings: Vec<Finding>) -> Vec<String> {
        let text = |finding: Finding| format!("{}: {}", finding.node, finding.text);
        findings.into_iter().map(text).collect()
    }

    #[test]
    fn nodes_that_are_alike_have_no_finding() {
        let all = ["a", "b", "c"].map(node);
        assert!(texts(all.iter().flat_map(|facts| alone(facts, 1 << 30)).collect()).is_empty());
        assert!(together(&all, &seen([("a", 9.0), ("b", 9.5), ("c", 10.9)])).is_empty());
    }

    #[test]
    fn a_node_by_itself_lacks_room_python_or_a_device() {
        let mut facts = node("a");
        facts.python = Err("there is none".to_owned());
        facts
            .disks
            .insert("/logs".into(), Err("read-only".to_owned()));
        facts.gpu_problems = vec!["GPU 1: lost".to_owned()];
        assert_eq!(
            texts(alone(&facts, 6 << 30)),
            [
                "a: Python: there is none",
                "a: /logs: read-only",
                "a: /tmp: 5120 MiB are free, 6144 MiB are required",
                "a: GPU 1: lost",
            ]
        );
    }

    #[test]
    fn nodes_that_differ_from_most_are_named() {
        let mut all = ["a", "b", "c"].map(node);
        if let Ok(python) = &mut all[1].python {
            python.torch.clear();
        }
        all[2].gpus = 7;
        all[2].addresses = Ok(vec!["127.0.1.1".to_owned()]);
        let mut seen = seen([("a", 9.0), ("b", 9.0), ("c", 15.0)]);
        if let Some(seen) = seen.get_mut("a") {
            seen.unreachable
                .insert("b".to_owned(), "refused".to_owned());
        }
        assert_eq!(
            texts(together(&all, &seen)),
            [
                "a: it cannot reach b: refused",
                "c: its own name resolves to 127.0.1.1, which other nodes cannot reach",
                "b: PyTorch: none, but other nodes have 2.15.0",
                "c: GPUs: 7, but other nodes have 8",
                "c: its clock is 6.0 s ahead",
            ]
        );
        seen.remove("b");
        assert!(
            texts(together(&all, &seen)).contains(&"b: it was lost during the check".to_owned())
        );
    }
}
