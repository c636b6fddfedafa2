//! The lines about what each worker gets: command, processors, variables.

use std::ffi::{OsStr, OsString};

use rdzv_agent::{LogBase, RendezvousPlan, WorkerPreview, preview};
use rdzv_agent_proto::group::Master;
use rdzv_core::env;
use rdzv_core::rank::GroupRank;

use super::draft::{Because, Draft};
use crate::exit::{Raised, Refusal};
use crate::resolve::{Environment, Launch};

/// Variables whose values the nodes find out together.
const TOGETHER: [&str; 6] = [
    env::RANK,
    env::WORLD_SIZE,
    env::GROUP_RANK,
    env::GROUP_WORLD_SIZE,
    env::ROLE_RANK,
    env::ROLE_WORLD_SIZE,
];

/// More values than these are not listed one by one.
const MANY: usize = 8;

pub(super) fn command(draft: &mut Draft, launch: &Launch) -> Result<(), Refusal> {
    draft.section("Command");
    let program = launch.plan.entrypoint.program.to_string_lossy();
    match &launch.reasons.interpreter {
        Some((path, reason)) => {
            let path = path.to_string_lossy();
            draft.line("interpreter", path, Because::detected(reason));
        }
        None => {
            let because = draft.given("no_python").without_value();
            draft.line("program", program.clone(), because);
        }
    }
    let modes = ["run_path", "no_python", "module"];
    let because = match modes.into_iter().find(|id| draft.is_given(id)) {
        Some(mode) => draft.given(mode).without_value(),
        None => Because::decided("a script, run by the interpreter"),
    };
    let workers = workers(launch)?;
    let line = |worker: &WorkerPreview| words(&program, &worker.arguments);
    for (who, line) in grouped(&workers, line) {
        draft.line(who, line, because.clone());
    }
    Ok(())
}

pub(super) fn binding(draft: &mut Draft, launch: &Launch) {
    if launch.reasons.bindings.is_empty() {
        return;
    }
    draft.section("Processors");
    for (local_rank, binding) in launch.reasons.bindings.iter().enumerate() {
        draft.setting(
            format!("worker {local_rank}"),
            "numa_binding",
            binding.processors.to_string(),
            &binding.reason,
        );
    }
}

pub(super) fn environment(
    draft: &mut Draft,
    launch: &Launch,
    environment: &Environment,
) -> Result<(), Refusal> {
    let plan = &launch.plan;
    draft.section("Variables of the workers, over this environment");
    let workers = workers(launch)?;
    let names: Vec<&'static str> = workers.first().map_or_else(Vec::new, |worker| {
        worker.variables.iter().map(|(name, _)| *name).collect()
    });
    let alone = plan.rendezvous == RendezvousPlan::Local;
    for (index, name) in names.into_iter().enumerate() {
        // Told with the rendezvous.
        if [env::MASTER_ADDR, env::MASTER_PORT].contains(&name) {
            continue;
        }
        let fixed = matches!(plan.rendezvous, RendezvousPlan::Static { .. })
            && [env::GROUP_RANK, env::GROUP_WORLD_SIZE].contains(&name);
        let value = if alone || fixed || !TOGETHER.contains(&name) {
            let value = |worker: &WorkerPreview| worker.variables[index].1.clone();
            listed(&workers, value)
        } else {
            "known when the nodes have met".to_owned()
        };
        let because = if plan.environment.contains_key(OsStr::new(name))
            && name == env::TORCH_NCCL_ASYNC_ERROR_HANDLING
        {
            Because::variable(name)
        } else {
            Because::decided(meaning(name))
        };
        draft.line(name, value, because);
    }
    let error_file = match plan.logs.base {
        LogBase::Discard => "",
        _ => "error.json in the worker's log directory",
    };
    draft.line(
        env::TORCHELASTIC_ERROR_FILE,
        error_file,
        Because::decided(meaning(env::TORCHELASTIC_ERROR_FILE)),
    );
    if let Some(threads) = plan.environment.get(OsStr::new(env::OMP_NUM_THREADS)) {
        let because = match environment.text(env::OMP_NUM_THREADS) {
            Some(_) => Because::variable(env::OMP_NUM_THREADS),
            None => Because::decided("several workers share the processors of this node"),
        };
        draft.line(env::OMP_NUM_THREADS, threads.to_string_lossy(), because);
    }
    Ok(())
}

fn workers(launch: &Launch) -> Result<Vec<WorkerPreview>, Refusal> {
    let plan = &launch.plan;
    let (nodes, group_rank, master) = match &plan.rendezvous {
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
            let address = plan.local_addr.as_deref().unwrap_or("127.0.0.1");
            (
                launch.reasons.nodes.0,
                GroupRank(0),
                (address.to_owned(), 0),
            )
        }
    };
    let master = Master {
        addr: master.0,
        port: master.1,
        hosted_by_agent: plan.share_store
            || matches!(plan.rendezvous, RendezvousPlan::Static { .. }),
    };
    let workers = preview(plan, nodes, group_rank, master);
    workers.map_err(|error| Raised::new(error.class(), error.to_string()).into())
}

/// The meaning of a variable, without the word that says for whom it is.
fn meaning(name: &str) -> String {
    let found = env::ALL.iter().find(|(known, _)| *known == name);
    let text = found.map_or("", |(_, meaning)| meaning.trim());
    let text = text.strip_prefix("Worker: ").unwrap_or(text);
    let sentence = text.split(['.', ';']).next().unwrap_or_default();
    sentence.to_owned()
}

/// One value if all workers have the same, else that of each.
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

/// Who has which value: all workers the same, or each its own.
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
    let who = |worker: &WorkerPreview| format!("worker {}", worker.place.local_rank);
    workers.iter().map(who).zip(values).collect()
}

/// A command as one would type it.
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
