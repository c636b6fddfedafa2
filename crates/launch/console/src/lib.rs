//! The texts that rdzv shows to people: a model and a width go in, lines come out.
//!
//! Nothing here knows a terminal, a clock, a file or a process. Width and colours are arguments.
//!
//! | module | text |
//! |---|---|
//! | [`mod@line`] | lines with roles, wrapped to a width |
//! | [`event`] | restarts, and nodes that come and go |
//! | [`failure`] | the end of a run that failed: verdict, traceback, attempts, files, remedy |
//! | [`success`] | the end of a run that succeeded |
//! | [`preemption`] | the notice that the scheduler takes the nodes away |
//! | [`stop`] | Ctrl-C and other signals: the workers that are awaited, and for how long |
//! | [`live`] | the lines and rows of workers while they run, and the status row |
//! | [`remedy`] | the advice for causes that are known |
//! | [`traceback`] | the few lines of a traceback that matter |
//! | [`quantity`] | counts and times in words |
//! | [`chart`] | a series of numbers as a small chart |

#![forbid(unsafe_code)]

pub mod chart;
pub mod event;
pub mod failure;
pub mod line;
pub mod live;
pub mod preemption;
pub mod quantity;
pub mod remedy;
pub mod speaker;
pub mod stop;
pub mod success;
pub mod traceback;

pub use line::{Line, Role, Span};
