//! Start of one worker: command, environment, streams.
//!
//! A worker has a separate session, so that a terminal's Ctrl-C reaches it only through the agent.
//! A worker dies with the agent. It inherits the working directory, and those of the descriptors 0
//! to 2 that are not redirected.

mod child;
mod clone;
mod fork_server;
mod program;

use std::collections::BTreeMap;
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
pub(crate) use fork_server::ForkServer;

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

/// Returns the environment of the workers, without their ranks.
fn environment_of_workers(launch: &AgentConfig) -> BTreeMap<OsString, OsString> {
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
    environment
}

/// Starts one worker; must be called on the main thread.
/// The fork server forks the worker if it can; otherwise the worker executes its program.
pub(crate) fn spawn(
    launch: &AgentConfig,
    ranks: &WorkerRanks,
    variables: Vec<(&'static str, String)>,
    streams: WorkerStreams,
    control_group: Option<File>,
    fork_server: &mut ForkServer,
) -> Result<Spawned, AgentError> {
    let name = &launch.entrypoint.program;
    let error_file = streams
        .error_file
        .map_or_else(OsString::new, OsString::from);
    let variables: Vec<(&'static str, OsString)> = variables
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .chain([(env::TORCHELASTIC_ERROR_FILE, error_file)])
        .collect();
    let arguments = environment::arguments(&launch.entrypoint.arguments, ranks.local_rank);
    let processors = launch.placement.processors.get(ranks.local_rank.0 as usize);
    let setup = child::Setup {
        stdin: None,
        stdout: streams.stdout,
        stderr: streams.stderr,
        open_files: launch.placement.open_files,
        traceable: launch.hang.stack_tool.is_some(),
        control_group,
        processors: processors.map(child::processors),
    };
    if let Some(forked) = fork_server.fork(&arguments, &variables, &setup) {
        return Ok(forked);
    }
    let mut environment = environment_of_workers(launch);
    environment.extend(
        variables
            .into_iter()
            .map(|(name, value)| (name.into(), value)),
    );
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
