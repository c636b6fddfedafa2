#![doc = include_str!("../README.md")]
//!
//! The input is a model and a width, and the output is lines.
//!
//! This crate uses no terminal, clock, file or process. Width and colours are arguments.
//!
//! | module | text |
//! |---|---|
//! | [`mod@line`] | lines with roles, wrapped to a width |
//! | [`event`] | restarts, and changes of nodes |
//! | [`failure`] | the end of a run that failed: verdict, traceback, attempts, files, remedy |
//! | [`goodput`] | the time of a node by class |
//! | [`success`] | the end of a run that succeeded |
//! | [`speaker`] | the choice of the node that prints the end of a job |
//! | [`preemption`] | the notice that the scheduler will take the nodes away |
//! | [`stop`] | Ctrl-C and other signals: the workers that still run, and the time left |
//! | [`live`] | the lines and rows of workers while they run, and the status row |
//! | [`remedy`] | advice for known causes |
//! | [`traceback`] | the relevant lines of a traceback |
//! | [`quantity`] | counts and times in words |
//! | [`chart`] | a series of numbers as a small chart |

#![forbid(unsafe_code)]

pub mod chart;
pub mod event;
pub mod failure;
pub mod goodput;
pub mod line;
pub mod live;
pub mod preemption;
pub mod quantity;
pub mod remedy;
pub mod speaker;
pub mod stop;
pub mod success;
pub mod traceback;

pub use line::{Line, LineRole, Span};
