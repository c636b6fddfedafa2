//! Views of a running job, and of a job that has ended.
//!
//! ```text
//!   agents ── messages ──► JobServer ── /events ──► Job ─► top, page
//!                              └─ /status, /stacks, /output ─► ps, stacks, logs
//!   events files ─► NodeReport ───────────────────► Job ─► page, Perfetto
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `job` | the model of a whole job, and the messages that change it |
//! | `server`, `routes` | the agent's side: the job as this agent knows it, and its answers |
//! | `socket` | the Unix sockets of this user's agents |
//! | `client` | requests to an agent; the choice of the job |
//! | `ps`, `stacks`, `logs` | the commands that print text |
//! | `top`, `frame` | `rdzv top`: its terminal, and the drawing of a frame |
//! | `web` | the page, and `rdzv top --web` |
//! | `timeline`, `perfetto` | `rdzv timeline` |

pub(crate) mod client;
mod frame;
mod job;
pub(crate) mod logs;
mod perfetto;
pub(crate) mod ps;
pub(crate) mod routes;
pub(crate) mod server;
pub(crate) mod socket;
pub(crate) mod stacks;
pub(crate) mod timeline;
pub(crate) mod top;
pub(crate) mod web;
