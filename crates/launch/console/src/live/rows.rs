//! The rows of all workers at the bottom, as many as fit.

use super::{Label, Row};

/// The row that one worker redraws.
#[derive(Debug, Clone, Copy)]
pub struct RankRow<'a> {
    /// Index of the worker.
    pub worker: usize,
    /// Row of the worker.
    pub row: &'a Row,
}

/// Returns the rows that fit on the terminal.
/// There are at most `most` rows of at most `width` columns. Equal rows are folded into one. If
/// rows do not fit, the last row counts their workers. `label` returns the label for the workers of
/// one row.
pub fn fold_rows(
    rows: &[RankRow<'_>],
    most: usize,
    width: usize,
    label: &mut dyn FnMut(&[usize]) -> Label,
) -> Vec<String> {
    let mut groups: Vec<(Vec<usize>, &Row)> = Vec::new();
    for RankRow { worker, row } in rows {
        match groups.iter_mut().find(|(_, other)| other == row) {
            Some((workers, _)) => workers.push(*worker),
            None => groups.push((vec![*worker], row)),
        }
    }
    let shown = if groups.len() > most {
        most.saturating_sub(1)
    } else {
        groups.len()
    };
    let mut lines: Vec<String> = groups[..shown]
        .iter()
        .map(|(workers, row)| {
            let label = label(workers);
            let room = width.saturating_sub(label.width());
            format!("{}{}", label.render(), row.text(room))
        })
        .collect();
    if shown < groups.len() && most > 0 {
        let more: usize = groups[shown..]
            .iter()
            .map(|(workers, _)| workers.len())
            .sum();
        lines.push(Row::plain(&format!("({more} more)")).text(width));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(texts: &[&str], most: usize) -> Vec<String> {
        let rows: Vec<Row> = texts.iter().map(|text| Row::plain(text)).collect();
        let rows: Vec<RankRow<'_>> = rows
            .iter()
            .enumerate()
            .map(|(worker, row)| RankRow { worker, row })
            .collect();
        fold_rows(&rows, most, 10, &mut |workers| {
            let names: Vec<String> = workers.iter().map(usize::to_string).collect();
            Label::new(&format!("[{}]", names.join(",")), None, false)
        })
    }

    #[test]
    fn equal_rows_are_one_and_long_ones_are_cut() {
        assert_eq!(folded(&["a", "b", "a"], 4), ["[0,2] a", "[1] b"]);
        assert_eq!(folded(&["0123456789"], 4), ["[0] 012345"]);
    }

    #[test]
    fn rows_without_room_are_counted() {
        assert_eq!(
            folded(&["a", "b", "c", "d", "c"], 3),
            ["[0] a", "[1] b", "(3 more)"]
        );
        assert!(folded(&["a"], 0).is_empty());
    }
}
