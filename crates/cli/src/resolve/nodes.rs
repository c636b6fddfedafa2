//! How many nodes take part: `--nnodes`.

use crate::args::conventions::bad_integer;
use crate::args::number::parse_int;
use crate::exit::Raised;

/// The range of nodes, `1 <= least <= most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nodes {
    /// The job starts with so many.
    pub(super) least: u32,
    /// And never has more.
    pub(super) most: u32,
}

/// Reads `N` or `MIN:MAX`.
pub(super) fn parse(text: &str) -> Result<Nodes, Raised> {
    let number = |text: &str| parse_int(text).ok_or_else(|| bad_integer(text));
    let parts: Vec<&str> = text.split(':').collect();
    let (least, most) = match parts[..] {
        [both] => {
            let both = number(both)?;
            (both, both)
        }
        [least, most] => (number(least)?, number(most)?),
        _ => {
            return Err(Raised::new(
                "RuntimeError",
                format!("nnodes={text} is not in \"MIN:MAX\" format"),
            ));
        }
    };
    if !(0 < least && least <= most) {
        return Err(Raised::new(
            "AssertionError",
            format!(
                "min_nodes must be > 0 and <= max_nodes, got min_nodes={least}, max_nodes={most}"
            ),
        ));
    }
    Ok(Nodes {
        least: u32::try_from(least).unwrap_or(u32::MAX),
        most: u32::try_from(most).unwrap_or(u32::MAX),
    })
}
