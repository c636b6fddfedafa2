//! The lines of an explanation about each worker: command and variables.

use std::ffi::{OsStr, OsString};

use rdzv_agent::config::{LogBase, RendezvousPlan};
use rdzv_agent::launcher::{WorkerPreview, preview};
use rdzv_agent_proto::group::Master;
use rdzv_core::env;
use rdzv_core::rank::GroupRank;

use super::context::Environment;
use super::resolve::Launch;
use crate::exit::{Raised, Refusal};
use crate::explanation::{Draft, Provenance};

/// Variables whose values depend on the rendezvous.
const OF_ROUND: [&str; 6] = [
    env::RANK,
    env::WORLD_SIZE,
    env::GROUP_RANK,
    env::GROUP_WORLD_SIZE,
    env::ROLE_RANK,
    env::ROLE_WORLD_SIZE,
];

/// Maximum number of values in a list; a longer list is shortened.
const MANY: usize = 8;

pub(super) fn explain_commands(
    draft: &mut Draft,
    launch: &Launch,
    workers: &[WorkerPreview],
    mode: &Provenance,
) {
    let program = launch.plan.entrypoint.program.to_string_lossy();
    let line = |worker: &WorkerPreview| words(&program, &worker.arguments);
    for (who, line) in grouped(workers, line) {
        draft.line(who, line, mode.clone());
    }
}

pub(super) fn explain_variables(
    draft: &mut Draft,
    launch: &Launch,
    workers: &[WorkerPreview],
    environment: &Environment,
) {
    let plan = &launch.plan;
    draft.section("Environment variables of the workers, in addition to this environment");
    let names: Vec<&'static str> = workers.first().map_or_else(Vec::new, |worker| {
        worker.variables.iter().map(|(name, _)| *name).collect()
    });
    let alone = plan.rendezvous.plan == RendezvousPlan::Local;
    for (index, name) in names.into_iter().enumerate() {
        // The section on rendezvous contains these two.
        if [env::MASTER_ADDR, env::MASTER_PORT].contains(&name) {
            continue;
        }
        let fixed = matches!(plan.rendezvous.plan, RendezvousPlan::Static { .. })
            && [env::GROUP_RANK, env::GROUP_WORLD_SIZE].contains(&name);
        let value = if alone || fixed || !OF_ROUND.contains(&name) {
            let value = |worker: &WorkerPreview| worker.variables[index].1.clone();
            listed(workers, value)
        } else {
            "known after the rendezvous".to_owned()
        };
        let provenance = if plan.environment.contains_key(OsStr::new(name))
            && name == env::TORCH_NCCL_ASYNC_ERROR_HANDLING
        {
            Provenance::variable(name)
        } else {
            Provenance::decided(meaning(name))
        };
        draft.line(name, value, provenance);
    }
    let error_file = match plan.logs.base {
        LogBase::Discard => "",
        _ => "error.json in the worker's log directory",
    };
    draft.line(
        env::TORCHELASTIC_ERROR_FILE,
        error_file,
        Provenance::decided(meaning(env::TORCHELASTIC_ERROR_FILE)),
    );
    if let Some(threads) = plan.environment.get(OsStr::new(env::OMP_NUM_THREADS)) {
        let provenance = match environment.text(env::OMP_NUM_THREADS) {
            Some(_) => Provenance::variable(env::OMP_NUM_THREADS),
            None => Provenance::decided("several workers share the processors of this node"),
        };
        draft.line(env::OMP_NUM_THREADS, threads.to_string_lossy(), provenance);
    }
    for name in [
        env::RDZV_JOB_TOKEN_FILE,
        env::RDZV_TLS_CERT,
        env::RDZV_TLS_KEY,
        env::RDZV_TLS_CA,
    ] {
        if let Some(path) = plan.environment.get(OsStr::new(name)) {
            let provenance = Provenance::decided(meaning(name));
            draft.line(name, path.to_string_lossy(), provenance);
        }
    }
}

/// Returns the workers of the first attempt, without starting them.
pub(super) fn preview_workers(launch: &Launch) -> Result<Vec<WorkerPreview>, Refusal> {
    let plan = &launch.plan;
    let (nodes, group_rank, master) = match &plan.rendezvous.plan {
        RendezvousPlan::Static {
            endpoint,
            node_rank,
            nodes,
            ..
        } => (
            *nodes,
            *node_rank,
            (endpoint.host.to_string(), endpoint.port),
        ),
        _ => {
            let address = plan.rendezvous.local_addr.as_deref().unwrap_or("127.0.0.1");
            (launch.nodes.least, GroupRank(0), (address.to_owned(), 0))
        }
    };
    let (addr, port) = master;
    let master = Master {
        addr,
        port,
        hosted_by_agent: plan.rendezvous.share_store
            || matches!(plan.rendezvous.plan, RendezvousPlan::Static { .. }),
    };
    let workers = preview(plan, nodes, group_rank, master);
    workers.map_err(|error| Raised::new(error.class(), error.to_string()).into())
}

/// Returns the first sentence about a variable, without `Worker: `.
fn meaning(name: &str) -> String {
    let found = env::ALL.iter().find(|(known, _)| *known == name);
    let text = found.map_or("", |(_, meaning)| meaning.trim());
    let text = text.strip_prefix("Worker: ").unwrap_or(text);
    let sentence = text.split(['.', ';']).next().unwrap_or_default();
    sentence.to_owned()
}

/// Returns one value if all workers have the same, or the value of each worker.
fn listed(workers: &[WorkerPreview], value: impl Fn(&WorkerPreview) -> String) -> String {
    let mut values: Vec<String> = workers.iter().map(value).collect();
    if values.iter().all(|value| *value == values[0]) {
        values.truncate(1);
    }
    if values.len() > MANY {
        let last = values.pop().unwrap_or_default();
        return format!("{}, {}, … {last}", values[0], values[1]);
    }
    values.join(", ")
}

/// Groups the values: one line if all are equal, or one line for each worker.
fn grouped(
    workers: &[WorkerPreview],
    value: impl Fn(&WorkerPreview) -> String,
) -> Vec<(String, String)> {
    let values: Vec<String> = workers.iter().map(value).collect();
    if values.iter().all(|value| *value == values[0]) {
        let who = if values.len() > 1 {
            "each worker"
        } else {
            "worker"
        };
        return values
            .into_iter()
            .take(1)
            .map(|value| (who.to_owned(), value))
            .collect();
    }
    let who = |worker: &WorkerPreview| format!("worker {}", worker.ranks.local_rank);
    workers.iter().map(who).zip(values).collect()
}

/// Returns a command as a user would type it.
///
/// A word of several lines is shortened.
fn words(program: &str, arguments: &[OsString]) -> String {
    let quoted = |word: &str| {
        let plain = |letter: char| letter.is_alphanumeric() || "-_=./:,+@%${}".contains(letter);
        if !word.is_empty() && word.chars().all(plain) {
            word.to_owned()
        } else if word.contains('\n') {
            format!("'…{} lines…'", word.lines().count())
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let arguments = arguments.iter().map(|word| quoted(&word.to_string_lossy()));
    let words: Vec<String> = std::iter::once(quoted(program)).chain(arguments).collect();
    words.join(" ")
}
