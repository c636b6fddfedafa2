//! The live view of a run.
//!
//! The view shows the lines of all workers, whole and labelled. Below them are rows for
//! progress bars and prompts, as many as fit, and one row for the state of the run.
//!
//! ```text
//! [0] epoch 1: loss 0.71                                        lines: they scroll away
//! [2] Traceback (most recent call last):
//! [2]   ...
//! [0]  45%|████████▌          | 45/100 [00:02<00:03]            rows: redrawn in place
//! [1]  44%|████████▎          | 44/100 [00:02<00:03]
//! running · 4 workers · 0:42                                    the status row
//! ```
//!
//! | file | content |
//! |---|---|
//! | `row` | one row of cells with their colours |
//! | `screen` | one stream of a worker: finished lines, and the row that is redrawn |
//! | `block` | lines that stay together: tracebacks |
//! | `label` | the label of a worker's lines, and its colour |
//! | `rows` | the rows of all workers, as many as fit |
//! | `status` | the status row |
//! | `part` | the parts of the status row, and the selection that fits |
//! | `strip` | text without terminal sequences |
//! | `region` | the bytes that put all this on a terminal |

mod block;
mod label;
mod part;
mod region;
mod row;
mod rows;
mod screen;
mod status;
mod strip;

pub use block::Blocks;
pub use label::{Label, labelled};
pub use region::Region;
pub use row::Row;
pub use rows::{RankRow, fold_rows};
pub use screen::Screen;
pub use status::{AwaitedText, Phase, Status};
pub use strip::strip;
