//! Processes around the agent.
//!
//! ```text
//!   keeper         the process that the user started: passes signals on, ends like the agent
//!     └─ guard     clears what the agent leaves behind; has another process name
//!          └─ agent                supervises the workers
//!               └─ workers         die with the agent (parent-death signal)
//! ```
//!
//! Each of the three is a child subreaper. The keeper and the guard wait for their child. The guard
//! and the agent also watch the processes above them through descriptors. If any two of the three
//! die, the third one clears everything:
//!
//! | killed (SIGKILL) | process that clears the rest |
//! |---|---|
//! | agent | the guard adopts the orphans; then it restarts the agent (`--agent-restarts`) |
//! | guard | the agent, as after the death of the keeper; then the keeper, which adopts the agent |
//! | keeper | the agent stops its workers quickly and ends; otherwise the guard kills it |
//! | agent and guard | the keeper |
//! | agent and keeper (`killall -9 rdzv`) | the guard |
//! | guard and keeper | the agent; if its main thread is blocked, another thread |
//!
//! The survivor may have been stopped (SIGSTOP). Guard and agent get SIGCONT when their parent
//! dies, and the keeper resumes a stopped guard. A keeper that is stopped stays stopped; this
//! matters only if guard *and* agent are killed during that time. If all three are killed, no
//! process clears the rest. Then only a control group that another program kills helps.
//!
//! The keeper forks the guard without executing a new program, which would take longer. The keeper
//! forks before it has any other thread or an event loop. The agent executes this program again.
//! The guard starts it immediately and prepares itself while the agent's program is loaded. The
//! guard knows when no process of the agent is left. State that outlives an agent therefore belongs
//! to the guard.
//!
//! Guard and agent have separate sessions. A signal from the terminal, or to the process group,
//! therefore reaches only the keeper. The keeper passes it on exactly once.
//! [`signals`](crate::signals) describes Ctrl-Z.
//!
//! | file | content |
//! |---|---|
//! | `outer` | the keeper |
//! | `guard` | the guard |
//! | `child` | shared by both: wait for a child, signals for it, cleanup after it |
//! | `restarts` | limits for restarting a process that was killed |
//! | `stopped_agent` | the workers of an agent that is stopped and has a fence |
//! | `watch` | the agent's view of keeper and guard, and of the state that outlives the agent |
//! | `service` | the keeper of a service without workers, which is restarted if it is killed |

mod child;
mod guard;
mod outer;
mod restarts;
mod service;
mod stopped_agent;
mod watch;

use std::time::Duration;

pub use outer::{AgentEnd, end_like, keep};
pub use restarts::RestartReason;
pub use service::{Service, keep_service};
pub(crate) use watch::{KeeperWatch, last_death, launcher};
pub use watch::{is_kept, kept, launcher_pid};

/// Time for the agent to exit alone after its keeper or guard has exited.
const LAST_RESORT_AFTER: Duration = Duration::from_millis(700);
