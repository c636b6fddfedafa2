//! The start of the relay of the workers' output, as a process of its own.

use std::io;
use std::process;

use rustix::process::getpid;

use crate::logs::{LiveView, Relay, ViewOptions, is_on_terminal};
use crate::spawn::{follow_parent, fork, name_this_process};

/// A relay that waits for its view. It ends with this process.
#[derive(Debug)]
pub struct OutputRelay(Relay);

impl OutputRelay {
    /// Starts it, if stdout and stderr of this process are one terminal.
    ///
    /// To be called on the main thread, before there is another one; later, the relay is no process but a
    /// thread, and workers wait for a process that stands still.
    pub fn start() -> Option<Self> {
        let relay = is_on_terminal().then(|| fork_relay().or_else(|_| Relay::start_thread()))?;
        relay.ok().map(Self)
    }

    /// Starts the view. It shows nothing before there is something to show.
    ///
    /// # Errors
    ///
    /// The system's, if it has no thread left.
    pub fn show(self, options: ViewOptions) -> io::Result<LiveView> {
        LiveView::start(options, self.0)
    }
}

fn fork_relay() -> io::Result<Relay> {
    let (relay, end) = Relay::pair()?;
    let parent = getpid();
    if fork()?.is_some() {
        return Ok(relay);
    }
    drop(relay);
    name_this_process(c"rdzv-output");
    if follow_parent(parent).is_ok() {
        end.serve();
    }
    process::exit(0)
}
