//! Settings that a cluster scheduler knows: `srun rdzv run train.py` needs no flags.
//!
//! Only inside a step of several nodes of a Slurm job, with one task on each of them. A flag or a
//! `PET_*` variable wins; if one of them says how the nodes meet, all of that is the user's. A
//! batch script, an `salloc` shell and a worker are no such place.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::time::Duration;

use rdzv_core::env::{CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, LOCAL_RANK, TORCHELASTIC_RUN_ID};

use crate::exit::Refusal;
use crate::explanation::{Draft, Provenance};

mod host_list;
mod kill_wait;

/// The schedulers that can be asked.
pub(crate) const SCHEDULERS: [&str; 3] = ["auto", "slurm", "none"];

/// Fields of flags that say how the nodes meet.
const MEETS: [&str; 7] = [
    "standalone",
    "nnodes",
    "node_rank",
    "rdzv_backend",
    "rdzv_endpoint",
    "master_addr",
    "master_port",
];

/// Variables of a worker: what it starts is a matter of its own.
const OF_WORKERS: [&str; 2] = [TORCHELASTIC_RUN_ID, LOCAL_RANK];

/// Ports of jobs begin here and end below the ports that the system gives out by itself.
const PORTS: std::ops::Range<u64> = 20_000..32_000;

/// Nothing starts a task of a step again that was killed, so its coordinator comes back from its keeper or never.
const COORDINATOR_TIMEOUT: &str = "coordinator_timeout=5";

/// The settings of a launch that a scheduler gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// The place in the job; none outside of one.
    pub(crate) job: Option<String>,
    /// This node among those of the step, if it has several. Their output comes to one place.
    pub(crate) place: Option<StepPlace>,
    /// Values for flags that were not given.
    pub(crate) values: Vec<Value>,
    /// The reason why the rest is not taken; empty if it is.
    pub(crate) not_taken: &'static str,
    /// Unix time in seconds at which the job ends, if the scheduler says so.
    pub(crate) deadline: Option<u64>,
    /// The longest grace of workers after which an agent ends before the scheduler kills it, if that is known.
    pub(crate) longest_grace: Option<Duration>,
    /// Sentences for the user.
    pub(crate) warnings: Vec<String>,
}

/// A node among those of a step of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepPlace {
    /// Its name.
    pub(crate) node: String,
    /// The number of its task.
    pub(crate) task: usize,
    /// The names of all nodes.
    pub(crate) names: Vec<String>,
}

/// A value for a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// The name of the flag's field.
    pub(crate) id: &'static str,
    pub(crate) value: String,
    /// The variable that it was made of.
    pub(crate) variable: &'static str,
}

/// Adds the place in the job to an explanation. The values stand where those of the flags stand.
pub(crate) fn explain(draft: &mut Draft, scheduled: &Scheduled) {
    let Some(job) = &scheduled.job else {
        return;
    };
    draft.section("Scheduler");
    let found = Provenance::detected("the variables that Slurm sets in every step");
    draft.line("place", job, found);
    draft.flag("asked", "scheduler");
    if !scheduled.not_taken.is_empty() {
        let why = Provenance::decided(scheduled.not_taken);
        draft.line("nodes and endpoint of it", "not taken", why);
    }
}

/// Asks the scheduler of this name. `given` tells the text that a flag was given, if it was.
///
/// # Errors
///
/// A job in which the nodes could not meet, and values that Slurm does not write.
pub(crate) fn scheduled(
    scheduler: &str,
    environment: &BTreeMap<OsString, OsString>,
    given: impl Fn(&str) -> Option<String>,
) -> Result<Scheduled, Refusal> {
    let is_worker = OF_WORKERS
        .iter()
        .any(|name| environment.contains_key(OsStr::new(name)));
    if scheduler == "none" || is_worker {
        return Ok(Scheduled::default());
    }
    let variables = Variables(environment);
    let Some(step) = Step::of(&variables)? else {
        if scheduler == "slurm" {
            return Err(Refusal::Usage(
                "--scheduler slurm: this is no step of a Slurm job, as SLURM_STEP_ID is no number: put \
                 srun before the line"
                    .to_owned(),
            ));
        }
        return Ok(outside_of_a_step(&variables, given));
    };
    step.settings(&variables, given)
}

/// A batch script, a shell of `salloc`, or no job at all.
fn outside_of_a_step(
    variables: &Variables<'_>,
    given: impl Fn(&str) -> Option<String>,
) -> Scheduled {
    let mut scheduled = Scheduled::default();
    let nodes = variables.text("SLURM_JOB_NUM_NODES");
    let nodes = nodes.and_then(|nodes| nodes.parse::<u32>().ok());
    if let (Some(job), Some(nodes @ 2..)) = (variables.text("SLURM_JOB_ID"), nodes)
        && !MEETS.iter().any(|id| given(id).is_some())
    {
        scheduled.warnings.push(format!(
            "this starts workers on one of the {nodes} nodes of Slurm job {job}: put srun before the line \
             to use all of them, or say --standalone"
        ));
    }
    scheduled
}

struct Variables<'v>(&'v BTreeMap<OsString, OsString>);

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(OsStr::new(name))?;
        Some(value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        let refused = || unreadable(name, &text, "it is no number");
        number.map(Some).ok_or_else(refused)
    }

    fn needed(&self, name: &str) -> Result<String, Refusal> {
        self.text(name).ok_or_else(|| {
            Refusal::Usage(format!(
                "{name} is missing, which Slurm sets in every step: say --nnodes and --rdzv-endpoint, or \
                 --scheduler none"
            ))
        })
    }
}

fn unreadable(name: &str, value: &str, reason: &str) -> Refusal {
    Refusal::Usage(format!(
        "{name} has the value {value:?}, which Slurm does not write: {reason}; say --nnodes and \
         --rdzv-endpoint, or --scheduler none"
    ))
}

/// A step of a Slurm job, and this task of it.
struct Step {
    job: u64,
    step: u64,
    task: u64,
    restart: u64,
    nodes: u64,
    /// The names of its nodes; the task of the first one hosts the rendezvous.
    names: Vec<String>,
    own: String,
}

impl Step {
    /// None outside of a step.
    fn of(variables: &Variables<'_>) -> Result<Option<Self>, Refusal> {
        // In a batch script and in an interactive step it is a word.
        let step = variables.text("SLURM_STEP_ID");
        let step = step.and_then(|step| step.parse::<u64>().ok());
        let (Some(step), Some(task)) = (step, variables.number("SLURM_PROCID")?) else {
            return Ok(None);
        };
        let Some(job) = variables.number("SLURM_JOB_ID")? else {
            return Ok(None);
        };
        let list = variables.needed("SLURM_STEP_NODELIST")?;
        let names = host_list::hosts(&list)
            .map_err(|reason| unreadable("SLURM_STEP_NODELIST", &list, &reason))?;
        let own = variables.needed("SLURMD_NODENAME")?;
        if !names.contains(&own) {
            // Variables that came along to another host.
            return Ok(None);
        }
        let nodes = variables.number("SLURM_STEP_NUM_NODES")?.unwrap_or(0);
        if nodes != names.len() as u64 {
            let reason = format!("{} nodes are in SLURM_STEP_NODELIST={list}", names.len());
            return Err(unreadable(
                "SLURM_STEP_NUM_NODES",
                &nodes.to_string(),
                &reason,
            ));
        }
        Ok(Some(Self {
            job,
            step,
            task,
            restart: variables.number("SLURM_RESTART_COUNT")?.unwrap_or(0),
            nodes,
            names,
            own,
        }))
    }

    fn settings(
        &self,
        variables: &Variables<'_>,
        given: impl Fn(&str) -> Option<String>,
    ) -> Result<Scheduled, Refusal> {
        self.check_tasks(variables)?;
        let Self {
            job,
            step,
            task,
            restart,
            nodes,
            ..
        } = self;
        let mut scheduled = Scheduled {
            job: Some(format!(
                "Slurm job {job}, step {step}, task {task} of {nodes}, restart {restart}"
            )),
            place: (*nodes > 1).then(|| StepPlace {
                node: self.own.clone(),
                task: usize::try_from(*task).unwrap_or(usize::MAX),
                names: self.names.clone(),
            }),
            // Not in every version.
            deadline: variables.number("SLURM_JOB_END_TIME")?,
            longest_grace: kill_wait::longest_grace(variables),
            ..Scheduled::default()
        };
        let is_given = |id: &str| given(id).is_some();
        let mut add = |id, value: String, variable| {
            if !is_given(id) {
                scheduled.values.push(Value {
                    id,
                    value,
                    variable,
                });
            }
        };
        if let Some(workers) = accelerators(variables)? {
            add("nproc_per_node", workers.to_string(), "SLURM_GPUS_ON_NODE");
        }
        if *nodes < 2 {
            return Ok(scheduled);
        }
        if MEETS.into_iter().any(is_given) {
            // The nodes of one rendezvous have one name for it; nodes that are alone each have
            // their own.
            if ["rdzv_endpoint", "master_addr", "master_port"]
                .into_iter()
                .any(is_given)
                && !is_given("standalone")
            {
                add("rdzv_id", self.run_id(variables), "SLURM_JOB_ID");
            }
            if given("rdzv_backend").as_deref() == Some("c10d") {
                add("rdzv_conf", COORDINATOR_TIMEOUT.to_owned(), "SLURM_STEP_ID");
            }
            scheduled.not_taken = "flags say how the nodes meet";
            scheduled
                .warnings
                .extend(given("nnodes").and_then(|text| self.disagrees(&text)));
            return Ok(scheduled);
        }
        add("nnodes", nodes.to_string(), "SLURM_STEP_NUM_NODES");
        add("rdzv_backend", "c10d".to_owned(), "SLURM_STEP_ID");
        let voters = self.voters(&given);
        // The port of the first holds for all.
        let mut endpoint = format!("{}:{}", voters[0], self.port());
        for voter in &voters[1..] {
            let _ = write!(endpoint, ",{voter}");
        }
        add("rdzv_endpoint", endpoint, "SLURM_STEP_NODELIST");
        add("rdzv_id", self.run_id(variables), "SLURM_JOB_ID");
        // All nodes start at once: a round need not wait long for more of them.
        let mut options = format!("last_call_timeout=2,{COORDINATOR_TIMEOUT}");
        if let [first] = voters {
            let is_host = u8::from(*first == self.own);
            let _ = write!(options, ",is_host={is_host}");
        }
        add("rdzv_conf", options, "SLURMD_NODENAME");
        Ok(scheduled)
    }

    /// The nodes at which the coordinator may be: several, so that the first one can be lost, if a node in reserve can
    /// take its place.
    ///
    /// A group of voters begins when all of them are there. A node whose check fails never is, and
    /// must not keep the others waiting.
    fn voters(&self, given: impl Fn(&str) -> Option<String>) -> &[String] {
        let asked = given("rdzv_conf").and_then(|options| {
            let mut pairs = options.split(',').filter_map(|pair| pair.split_once('='));
            let voters = pairs.find(|(name, _)| name.trim() == "voters");
            voters.and_then(|(_, number)| number.trim().parse().ok())
        });
        let has_spares = given("spares").is_some_and(|number| number != "0");
        let count = match asked {
            Some(count) => usize::max(count, 1),
            None if has_spares && given("node_check").is_none() => 3,
            None => 1,
        };
        self.names.get(..count).unwrap_or(&self.names[..1])
    }

    /// Each task would start all workers of its node.
    fn check_tasks(&self, variables: &Variables<'_>) -> Result<(), Refusal> {
        const NAME: &str = "SLURM_STEP_TASKS_PER_NODE";
        let Some(tasks) = variables.text(NAME) else {
            return Ok(());
        };
        // `1`, `2(x3)` or `2,1(x2)`.
        let counts = tasks.split(',').map(|part| part.split('(').next());
        for count in counts {
            match count.and_then(|count| count.parse::<u32>().ok()) {
                Some(1) => {}
                Some(_) => {
                    return Err(Refusal::Usage(format!(
                        "step {} of Slurm job {} has several tasks on a node ({NAME}={tasks}), and each of \
                         them would start all workers of the node: use --ntasks-per-node=1, or say \
                         --scheduler none if that is meant",
                        self.step, self.job
                    )));
                }
                None => return Err(unreadable(NAME, &tasks, "it has no numbers of tasks")),
            }
        }
        Ok(())
    }

    fn run_id(&self, variables: &Variables<'_>) -> String {
        let array = ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"].map(|name| {
            let number = variables.number(name).ok().flatten();
            number.map(|number| number.to_string())
        });
        let job = match array {
            [Some(job), Some(task)] => format!("{job}_{task}"),
            _ => self.job.to_string(),
        };
        format!("slurm-{job}.{}.{}", self.step, self.restart)
    }

    /// A port that other jobs on the node do not have, as a rule.
    fn port(&self) -> u64 {
        let name = format!("{}.{}.{}", self.job, self.step, self.restart);
        // FNV-1a: every node has to find the same port, whatever its build.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        PORTS.start + hash % (PORTS.end - PORTS.start)
    }

    /// A sentence if `--nnodes` names another number of nodes than the step has.
    fn disagrees(&self, nnodes: &str) -> Option<String> {
        let nodes = self.nodes;
        let bound = |text: &str| text.trim().parse::<u64>().ok();
        let (least, most) = nnodes.split_once(':').unwrap_or((nnodes, nnodes));
        let (least, most) = (bound(least)?, bound(most)?);
        if most < nodes {
            let spares = nodes - most;
            return Some(format!(
                "--nnodes {nnodes} in a step of {nodes} nodes: {spares} in reserve, without workers until \
                 another node is lost"
            ));
        }
        (least > nodes).then(|| {
            format!("--nnodes {nnodes} in a step of {nodes} nodes: the job waits for nodes that are not in it")
        })
    }
}

/// The accelerators that the step has on this node, as far as they are visible; none if Slurm counts none.
fn accelerators(variables: &Variables<'_>) -> Result<Option<u64>, Refusal> {
    let Some(count) = variables
        .number("SLURM_GPUS_ON_NODE")?
        .filter(|count| *count > 0)
    else {
        return Ok(None);
    };
    let visible = [CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES]
        .into_iter()
        .find_map(|name| variables.text(name));
    let visible = visible.map_or(u64::MAX, |list| list.split(',').count() as u64);
    Ok(Some(count.min(visible)))
}

#[cfg(test)]
mod tests;
