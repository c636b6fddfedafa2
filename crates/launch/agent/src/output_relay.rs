//! The start of the relay of the workers' output, as a process of its own.

use std::io;
use std::process;

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use crate::logs::{LiveView, Relay, ViewOptions, is_on_terminal};
use crate::spawn::{follow_parent, fork, name_this_process};

/// A relay that waits for its view. It ends with this process.
#[derive(Debug)]
pub struct OutputRelay {
    relay: Option<Relay>,
    process: Option<Pid>,
}

impl OutputRelay {
    /// Starts it, if stdout and stderr of this process are one terminal.
    ///
    /// To be called on the main thread, before there is another one; later, the relay is no process
    /// but a thread, and workers wait for a process that stands still.
    pub fn start() -> Option<Self> {
        if !is_on_terminal() {
            return None;
        }
        fork_relay()
            .or_else(|_| Relay::start_thread().map(|relay| (relay, None)))
            .map(|(relay, process)| Self {
                relay: Some(relay),
                process,
            })
            .ok()
    }

    /// Starts the view. It shows nothing before there is something to show.
    ///
    /// # Errors
    ///
    /// The system's, if it has no thread left.
    pub fn show(mut self, options: ViewOptions) -> io::Result<LiveView> {
        let relay = self.relay.take().expect("it is taken here only");
        LiveView::start(options, relay)
    }
}

impl Drop for OutputRelay {
    /// Ends a relay that nobody needs.
    fn drop(&mut self) {
        if let Some(relay) = self.relay.take() {
            drop(relay);
            // It ends now; afterwards it would stay as a zombie, since nobody else waits for it.
            if let Some(process) = self.process {
                let _ = waitpid(Some(process), WaitOptions::empty());
            }
        }
    }
}

fn fork_relay() -> io::Result<(Relay, Option<Pid>)> {
    let (relay, end) = Relay::pair()?;
    let parent = getpid();
    if let Some(process) = fork()? {
        return Ok((relay, Some(process)));
    }
    drop(relay);
    name_this_process(c"rdzv-output");
    if follow_parent(parent).is_ok() {
        end.serve();
    }
    process::exit(0)
}
