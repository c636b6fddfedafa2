//! Comparison of a report with the expected verdict.

use serde_json::Value;

use crate::launch::Ended;
use crate::table::Row;

/// Result of the comparison.
pub(crate) enum Named {
    Rightly,
    /// Description of the mistake.
    Wrongly(String),
    /// Reason why this machine cannot run the row.
    NotTested(String),
}

/// Compares all reports of a row, which must all be correct.
pub(crate) fn compare(row: &Row, nodes: &[Ended]) -> Named {
    for (index, node) in nodes.iter().enumerate() {
        if let Some(wrong) = wrong(row, node) {
            return Named::Wrongly(format!(
                "line {}, {}, node {index} of {}: {wrong}; expected rank {:?}, {}, {:?}",
                row.line,
                row.name,
                nodes.len(),
                row.ranks,
                row.kinds.join(" or "),
                row.texts
            ));
        }
    }
    Named::Rightly
}

fn wrong(row: &Row, node: &Ended) -> Option<String> {
    if node.hung {
        return Some("did not end".to_owned());
    }
    let Some(report) = &node.report else {
        return Some(format!("no report ({})", node.status));
    };
    let first = &report["first_failure"];
    if row.kinds == ["none"] {
        let fine = first.is_null() && report["outcome"] == "succeeded" && node.status.success();
        return (!fine).then(|| format!("{} and {first}", node.status));
    }
    if node.status.success() || report["exit_code"] == 0 {
        return Some(format!("{}, reported {}", node.status, report["exit_code"]));
    }
    // Without a first failure, the error of the run itself is the cause.
    let (kind, text) = if first.is_null() {
        ("agent_error", text(&report["error"]))
    } else {
        let cause = &first["cause"];
        (cause["kind"].as_str().unwrap_or("?"), text(&cause["text"]))
    };
    let rank = first["rank"].as_u64();
    let rank_is_right = row.ranks.contains(&rank);
    let kind_is_right = row.kinds.contains(&kind);
    let text_is_right = row.texts.iter().any(|part| text.contains(part.as_str()));
    (!(rank_is_right && kind_is_right && text_is_right))
        .then(|| format!("rank {rank:?}, {kind}, {text:?}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}
