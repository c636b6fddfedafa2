//! Start of the relay of the workers' output, as a separate process.

use std::io;
use std::process;

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use crate::logs::{LiveView, Relay, ViewOptions, is_on_terminal};
use crate::spawn::{follow_parent, fork, name_this_process};

/// Relay that waits for its view; it ends with this process.
#[derive(Debug)]
pub struct OutputRelay {
    relay: Option<Relay>,
    process: Option<Pid>,
}

impl OutputRelay {
    /// Starts the relay if stdout and stderr of this process are one terminal.
    ///
    /// Must be called on the main thread, before any other thread exists. If the relay cannot be a
    /// process, it is a thread. Workers then block on their output while this process is stopped.
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

    /// Starts the view, which stays empty until there is output.
    ///
    /// # Errors
    ///
    /// Returns the system's error if no thread can be started.
    pub fn show(mut self, options: ViewOptions) -> io::Result<LiveView> {
        let relay = self.relay.take().expect("it is taken here only");
        LiveView::start(options, relay)
    }
}

impl Drop for OutputRelay {
    /// Ends a relay that no view has taken.
    fn drop(&mut self) {
        if let Some(relay) = self.relay.take() {
            drop(relay);
            // The relay exits now. Without this wait, the relay would stay a zombie, because no
            // other code waits for it.
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
