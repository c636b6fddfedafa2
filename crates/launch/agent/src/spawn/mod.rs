//! Start of one worker: command, environment, streams.
//!
//! A worker has a separate session, so that a terminal's Ctrl-C reaches it only through the agent.
//! A worker dies with the agent. It inherits the working directory and descriptors 0 to 2.

mod child;
mod clone;
mod program;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rdzv_agent_proto::group::{WorkerRanks, environment};
use rdzv_core::env;
use rustix::process::Pid;

pub(crate) use child::{
    detach_agent, follow_parent, fork, inherited, keep_descriptors_private, name_this_process,
};

use self::program::Program;
use crate::logs::WorkerStreams;
use crate::{AgentConfig, AgentError};

/// Process that was just started.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    /// Descriptor that becomes readable when the process exits.
    pub(crate) pidfd: OwnedFd,
}

/// Starts one worker; must be called on the main thread.
pub(crate) fn spawn(
    launch: &AgentConfig,
    ranks: &WorkerRanks,
    variables: Vec<(&'static str, String)>,
    streams: WorkerStreams,
    control_group: Option<File>,
) -> Result<Spawned, AgentError> {
    let name = &launch.entrypoint.program;
    let mut environment = launch.environment.clone();
    for absent in [
        env::RDZV_TOKEN_COPY,
        env::RDZV_KEEPER,
        env::RDZV_GUARD,
        env::RDZV_KEPT,
        env::RDZV_CALLER,
    ] {
        environment.remove(OsStr::new(absent));
    }
    let error_file = streams
        .error_file
        .map_or_else(OsString::new, OsString::from);
    let own = variables
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .chain([(env::TORCHELASTIC_ERROR_FILE, error_file)]);
    environment.extend(own.map(|(name, value)| (name.into(), value)));
    let arguments = environment::arguments(&launch.entrypoint.arguments, ranks.local_rank);
    let processors = launch.placement.processors.get(ranks.local_rank.0 as usize);
    let setup = child::Setup {
        stdout: streams.stdout,
        stderr: streams.stderr,
        open_files: launch.placement.open_files,
        traceable: launch.hang.stack_tool.is_some(),
        control_group,
        processors: processors.map(child::processors),
    };
    let started = Program::new(name, arguments, &environment)
        .and_then(|program| child::start(&program, &setup));
    started.map_err(|source| {
        let program = name.to_string_lossy().into_owned();
        let absent = source.kind() == io::ErrorKind::NotFound;
        let there = program.contains('/') && Path::new(name).exists();
        if absent && !there {
            return AgentError::ProgramNotFound { program };
        }
        let no_interpreter = "No such file or directory: the file exists, but not the interpreter \
                              that it names (in the first line of a script, or as the loader of a \
                              binary)";
        AgentError::Spawn {
            local_rank: ranks.local_rank.0,
            program,
            source: if absent {
                io::Error::new(source.kind(), no_interpreter)
            } else {
                source
            },
        }
    })
}
