//! Exit statuses of processes.

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Wall;

/// Exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// This signal killed the process.
    Signal(i32),
}

impl Exit {
    /// Returns the status as PyTorch's number: the code, or minus the signal.
    pub fn as_number(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
        }
    }

    /// Converts a number of [`Exit::as_number`] back.
    pub fn from_number(number: i32) -> Self {
        if number < 0 {
            Self::Signal(number.saturating_neg())
        } else {
            Self::Code(number)
        }
    }

    /// `true` if the exit code is 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

/// Exit of one worker, as the kernel or the supervisor reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// The worker.
    pub local_rank: LocalRank,
    /// Process id of the worker.
    pub pid: u32,
    /// Exit code of the worker, or the signal that killed it.
    pub exit: Exit,
    /// Time at which the agent saw the exit, or that the supervisor reported.
    pub at: Wall,
    /// `true` if the agent had sent the running worker a closing signal or SIGKILL.
    /// `false` if a fault of this worker, such as a hang, was the reason for the signal.
    pub stopped_by_agent: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_references() {
        assert_eq!(Exit::Code(44).as_number(), 44);
        assert_eq!(Exit::Signal(9).as_number(), -9);
        for exit in [Exit::Code(44), Exit::Signal(9)] {
            assert_eq!(Exit::from_number(exit.as_number()), exit);
        }
        assert!(Exit::Code(0).is_success());
    }
}
