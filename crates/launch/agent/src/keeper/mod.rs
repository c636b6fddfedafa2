//! The processes around the agent.
//!
//! ```text
//!   keeper         the process that the user started: passes signals on, ends as the agent has ended
//!     └─ guard     clears what the agent leaves behind; has another process name
//!          └─ agent                supervises the workers
//!               └─ workers         die with the agent (parent-death signal)
//! ```
//!
//! Each of the three is a child subreaper, and each watches the two others by descriptors and as
//! parent or child. Therefore the one that is left after the death of any two clears everything:
//!
//! | killed (SIGKILL) | who clears the rest |
//! |---|---|
//! | agent | the guard: the agent's orphans come to it; then it starts the agent again (`--agent-restarts`) |
//! | guard | the agent, as after the death of the keeper; then the keeper, to which agent and orphans come |
//! | keeper | the agent stops its workers with a very short grace and ends; the guard kills it if it does not |
//! | agent and guard | the keeper |
//! | agent and keeper (`killall -9 rdzv`) | the guard |
//! | guard and keeper | the agent; if its main thread is held up, another thread |
//!
//! The survivor may have been stopped (SIGSTOP). Guard and agent get SIGCONT when their parent
//! dies, and the keeper does not leave its guard stopped. A keeper that is stopped stays so, which
//! matters only if guard *and* agent are killed meanwhile. Nobody is left if all three are killed;
//! then only a control group that somebody else kills helps.
//!
//! The guard is forked without a new program, which would take longer, before the keeper has any
//! thread or event loop. The agent is this program again. The guard starts it at once and gets
//! ready while it is loaded. It is the guard that knows when nothing of the agent is left; thus
//! whatever is to outlive an agent belongs to the guard.
//!
//! Guard and agent have sessions of their own. Therefore a signal from the terminal, or to the
//! process group, reaches the keeper alone, which passes it on: exactly once, and also where only
//! one process was meant. [`signals`](crate::signals) describes Ctrl-Z.
//!
//! | file | holds |
//! |---|---|
//! | `outer` | the keeper |
//! | `guard` | the guard |
//! | `child` | both: the wait for a child, the signals for it, the end of what it leaves |
//! | `restarts` | how often a process that was killed is started again |
//! | `stopped_agent` | the workers of an agent that is stopped and has a fence |
//! | `watch` | the agent's view of the two, and of what outlives it |
//! | `service` | the keeper of a service without workers, which is started again if it is killed |

mod child;
mod guard;
mod outer;
mod restarts;
mod service;
mod stopped_agent;
mod watch;

use std::time::Duration;

pub use outer::{AgentEnd, end_like, keep};
pub use restarts::Restart;
pub use service::{Service, keep_service};
pub(crate) use watch::{KeeperWatch, last_death, launcher};
pub use watch::{is_kept, kept, launcher_pid};

/// Time for the agent to end by itself once one of the processes around it is gone.
const LAST_RESORT_AFTER: Duration = Duration::from_millis(700);
