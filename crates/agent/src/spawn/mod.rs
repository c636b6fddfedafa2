//! Starting one worker: command, environment, streams.
//!
//! A worker has a session of its own (so that a terminal's Ctrl-C reaches it through the agent
//! only), dies with the agent, and inherits working directory, stdin and descriptors 0 to 2.

mod child;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rdzv_agent_proto::group::{WorkerRanks, environment};
use rdzv_core::env;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub(crate) use child::{
    bind, detach_agent, detach_worker, enter, follow_parent, fork, inherited,
    keep_descriptors_private, let_trace, limit_open_files, name_this_process,
};

use crate::error::system;
use crate::logs::WorkerStreams;
use crate::{AgentConfig, AgentError};

/// A process that was just started.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    /// Becomes readable when it ends.
    pub(crate) pidfd: OwnedFd,
}

/// Starts one worker. To be called on the main thread.
pub(crate) fn spawn(
    launch: &AgentConfig,
    ranks: &WorkerRanks,
    variables: Vec<(&'static str, String)>,
    streams: WorkerStreams,
    control_group: Option<File>,
) -> Result<Spawned, AgentError> {
    let mut command = Command::new(&launch.entrypoint.program);
    command
        .args(environment::arguments(
            &launch.entrypoint.arguments,
            ranks.local_rank,
        ))
        .env_clear()
        .envs(&launch.environment)
        .env_remove(env::RDZV_TOKEN_COPY)
        .env_remove(env::RDZV_KEEPER)
        .env_remove(env::RDZV_GUARD)
        .env_remove(env::RDZV_KEPT)
        .env_remove(env::RDZV_CALLER)
        .envs(variables)
        .env(
            env::TORCHELASTIC_ERROR_FILE,
            streams
                .error_file
                .map_or_else(OsString::new, OsString::from),
        )
        .stdin(Stdio::inherit());
    if let Some(stdout) = streams.stdout {
        command.stdout(stdout);
    }
    if let Some(stderr) = streams.stderr {
        command.stderr(stderr);
    }
    detach_worker(&mut command);
    if let Some(most) = launch.open_files {
        limit_open_files(&mut command, most);
    }
    if launch.hang.stack_tool.is_some() {
        let_trace(&mut command);
    }
    if let Some(entrance) = control_group {
        enter(&mut command, entrance);
    }
    if let Some(processors) = launch.processors.get(ranks.local_rank.0 as usize) {
        bind(&mut command, processors);
    }
    let child = command.spawn().map_err(|source| {
        let program = launch.entrypoint.program.to_string_lossy().into_owned();
        let absent = source.kind() == io::ErrorKind::NotFound;
        let there = program.contains('/') && Path::new(&launch.entrypoint.program).exists();
        match (absent, there) {
            (true, false) => AgentError::ProgramNotFound { program },
            (true, true) => AgentError::Spawn {
                local_rank: ranks.local_rank.0,
                program,
                source: io::Error::new(
                    source.kind(),
                    "the file is there, but not the interpreter that it names (the first line of a \
                     script, or the loader of a binary)",
                ),
            },
            (false, _) => AgentError::Spawn {
                local_rank: ranks.local_rank.0,
                program,
                source,
            },
        }
    })?;
    // The handle is not needed: the process is waited for by its descriptor.
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    let pidfd = pidfd.map_err(system("watch a worker (pidfd_open)"))?;
    Ok(Spawned { pid, pidfd })
}
