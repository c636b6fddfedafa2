//! Settings from a cluster scheduler: `srun rdzv run train.py` needs no flags.
//!
//! rdzv reads the settings only inside a step of a Slurm job, with one task on each node. A flag or
//! a `PET_*` variable overrides a setting. If one of them configures the rendezvous, rdzv takes
//! neither nodes nor endpoint from Slurm. In a batch script, an `salloc` shell or a worker, rdzv
//! takes no settings at all.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::time::Duration;

use rdzv_core::env::{
    CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, LOCAL_RANK, MASTER_ADDR, RANK, TORCHELASTIC_RUN_ID,
    WORLD_SIZE,
};
use rdzv_core::quantity::count;

use crate::exit::Refusal;
use crate::explanation::{Draft, Provenance};

mod host_list;
mod kill_wait;

/// Values of `--scheduler`.
pub(crate) const SCHEDULERS: [&str; 3] = ["auto", "slurm", "none"];

/// Fields of flags that configure the rendezvous.
const MEETS: [&str; 7] = [
    "standalone",
    "nnodes",
    "node_rank",
    "rdzv_backend",
    "rdzv_endpoint",
    "master_addr",
    "master_port",
];

/// Variables of a worker; inside a worker, Slurm's settings do not apply.
const OF_WORKERS: [&str; 2] = [TORCHELASTIC_RUN_ID, LOCAL_RANK];

/// Range of the jobs' ports, below the ports that the system assigns.
const PORTS: std::ops::Range<u64> = 20_000..32_000;

/// Option for a short wait for a lost coordinator.
///
/// Slurm does not restart a killed task of a step, so only the guard can restart a coordinator.
const COORDINATOR_TIMEOUT: &str = "coordinator_timeout=5";

/// Settings of a launch from a scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Description of the job, the step and the task; `None` outside a step.
    pub(crate) job: Option<String>,
    /// This node's part in the step, if the step has several nodes.
    ///
    /// By default, `srun` lets all these nodes print to the same output.
    pub(crate) step_node: Option<StepNode>,
    /// Values for flags that neither the line nor a variable sets.
    pub(crate) values: Vec<Value>,
    /// Reason why rdzv takes neither nodes nor endpoint, if flags set them.
    pub(crate) not_taken: &'static str,
    /// Unix time in seconds at which the job ends, if the scheduler reports it.
    pub(crate) deadline: Option<u64>,
    /// Longest shutdown timeout that ends before the scheduler's SIGKILL, if known.
    pub(crate) longest_shutdown_timeout: Option<Duration>,
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepNode {
    pub(crate) node: String,
    pub(crate) task: usize,
    /// Names of all nodes of the step.
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// Name of the flag's field.
    pub(crate) id: &'static str,
    pub(crate) value: String,
    /// Variable from which the value comes.
    pub(crate) variable: &'static str,
}

/// Adds the section about the scheduler to an explanation.
///
/// The values from the scheduler are in the sections of their flags.
pub(crate) fn explain(draft: &mut Draft, scheduled: &Scheduled) {
    let Some(job) = &scheduled.job else {
        return;
    };
    draft.section("Scheduler");
    let found = Provenance::detected("the variables that Slurm sets in every step");
    draft.line("task", job, found);
    draft.flag("scheduler", "scheduler");
    if !scheduled.not_taken.is_empty() {
        let why = Provenance::decided(scheduled.not_taken);
        draft.line("its nodes and endpoint", "ignored", why);
    }
}

/// Reads the settings from the scheduler with this name.
///
/// `given` returns the value of a flag by its id, if the line or a variable sets the flag.
///
/// # Errors
///
/// Fails for a step with several tasks on a node, for values that are missing or not from Slurm,
/// for too many spare nodes, and for `slurm` outside a step. If flags configure the rendezvous,
/// `auto` only warns about a step that cannot be read.
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
    let step = match Step::of(&variables) {
        // The flags need nothing from the step.
        Err(refusal) if scheduler == "auto" && MEETS.iter().any(|id| given(id).is_some()) => {
            let warnings = vec![refusal.plain().to_owned()];
            return Ok(Scheduled {
                warnings,
                ..Scheduled::default()
            });
        }
        step => step?,
    };
    let Some(step) = step else {
        if scheduler == "slurm" {
            return Err(Refusal::Usage(
                "the scheduler is slurm, but this process is not in a step of a Slurm job: run the \
                 command with srun"
                    .to_owned(),
            ));
        }
        return Ok(outside_of_a_step(&variables, given));
    };
    step.settings(&variables, given)
}

/// Returns warnings only: for a batch script, an `salloc` shell, or no job.
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
            "this command starts workers on only one of the {nodes} nodes of Slurm job {job}: run \
             it with srun to use all nodes, or add --standalone"
        ));
    } else if !MEETS.iter().any(|id| given(id).is_some()) {
        scheduled.warnings.extend(several_nodes(variables));
    }
    scheduled
}

/// Variables in which other launchers set the number of nodes or tasks.
const SIZES: [&str; 6] = [
    WORLD_SIZE,
    "NNODES",
    "LWS_GROUP_SIZE",
    "AWS_BATCH_JOB_NUM_NODES",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
];

/// Variables of other launchers with the index of this node or task.
const INDICES: [&str; 5] = [
    RANK,
    "NODE_RANK",
    "JOB_COMPLETION_INDEX",
    "LWS_WORKER_INDEX",
    "VC_TASK_INDEX",
];

/// Returns a warning if variables name several nodes, although no flag does.
fn several_nodes(variables: &Variables<'_>) -> Option<String> {
    let number = |name: &&str| {
        variables
            .text(name)
            .and_then(|text| text.parse::<u32>().ok())
    };
    let nodes = SIZES
        .iter()
        .filter_map(number)
        .max()
        .filter(|nodes| *nodes > 1);
    let index = INDICES
        .iter()
        .filter_map(number)
        .max()
        .filter(|index| *index > 0);
    let nodes = match (nodes, index) {
        (Some(nodes), _) => nodes.to_string(),
        (None, Some(index)) => format!("at least {}", index + 1),
        (None, None) => return None,
    };
    let names = SIZES.iter().chain(&INDICES).chain(&[MASTER_ADDR]);
    let set = names.filter_map(|name| Some(format!("{name}={}", variables.text(name)?)));
    let set: Vec<String> = set.collect();
    Some(format!(
        "the environment specifies {nodes} nodes or tasks ({}), but no flag does: this command \
         starts a job with one node\n\
         help: pass --nnodes, --rdzv-backend c10d and --rdzv-endpoint, or --standalone for one node",
        set.join(", ")
    ))
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
        let refused = || unreadable(name, &text, "it is not a number");
        number.map(Some).ok_or_else(refused)
    }

    fn needed(&self, name: &str) -> Result<String, Refusal> {
        self.text(name).ok_or_else(|| {
            Refusal::Usage(format!(
                "{name}, which Slurm sets in every step, is missing\n{WITHOUT_SLURM}"
            ))
        })
    }
}

const WITHOUT_SLURM: &str = "help: specify --scheduler none, and for several nodes also --nnodes, \
                             --rdzv-backend c10d and --rdzv-endpoint";

fn unreadable(name: &str, value: &str, reason: &str) -> Refusal {
    Refusal::Usage(format!(
        "{name} has the value {value:?}, which is not from Slurm: {reason}\n{WITHOUT_SLURM}"
    ))
}

/// Step of a Slurm job, and this task in it.
struct Step {
    job: u64,
    step: u64,
    task: u64,
    restart: u64,
    nodes: u64,
    /// Names of the step's nodes; the first ones can host the coordinator.
    names: Vec<String>,
    own: String,
}

impl Step {
    /// Reads the step from the variables; `None` outside a step.
    fn of(variables: &Variables<'_>) -> Result<Option<Self>, Refusal> {
        // In a batch script and in an interactive step, the value is a word, or is not set.
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
            // The variables were passed on to another host.
            return Ok(None);
        }
        let nodes = variables.number("SLURM_STEP_NUM_NODES")?.unwrap_or(0);
        if nodes != names.len() as u64 {
            let names = count(names.len(), "node");
            let reason = format!("SLURM_STEP_NODELIST={list} names {names}");
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
            step_node: (*nodes > 1).then(|| StepNode {
                node: self.own.clone(),
                task: usize::try_from(*task).unwrap_or(usize::MAX),
                names: self.names.clone(),
            }),
            // Some versions of Slurm do not set it.
            deadline: variables.number("SLURM_JOB_END_TIME")?,
            longest_shutdown_timeout: kill_wait::longest_shutdown_timeout(variables),
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
        if !is_given("nproc_per_node")
            && let Some(workers) = accelerators(variables)?
        {
            add("nproc_per_node", workers.to_string(), "SLURM_GPUS_ON_NODE");
        }
        let spares = spares(&given);
        let takes_nodes = !MEETS.into_iter().any(is_given);
        if takes_nodes && spares >= *nodes {
            return Err(Refusal::Usage(format!(
                "--spares {spares} leaves no node for the job: Slurm step {step} of job {job} has \
                 {}",
                count(*nodes, "node")
            )));
        }
        if *nodes < 2 {
            return Ok(scheduled);
        }
        if !takes_nodes {
            // The nodes of one rendezvous share a run id. Standalone nodes have different run ids.
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
            scheduled.not_taken = "flags select the rendezvous";
            let warning = match given("nnodes") {
                Some(nnodes) => self.disagrees(&nnodes, spares),
                None => (!is_given("standalone")).then(|| {
                    format!(
                        "without --nnodes, the job has one of the {nodes} nodes of the step\n\
                         help: pass --nnodes {nodes}, or --standalone for a job on each node"
                    )
                }),
            };
            scheduled.warnings.extend(warning);
            return Ok(scheduled);
        }
        add(
            "nnodes",
            (nodes - spares).to_string(),
            "SLURM_STEP_NUM_NODES",
        );
        add("rdzv_backend", "c10d".to_owned(), "SLURM_STEP_ID");
        let voters = self.voters(&given);
        // The port of the first endpoint is that of all.
        let mut endpoint = format!("{}:{}", voters[0], self.port());
        for voter in &voters[1..] {
            let _ = write!(endpoint, ",{voter}");
        }
        add("rdzv_endpoint", endpoint, "SLURM_STEP_NODELIST");
        add("rdzv_id", self.run_id(variables), "SLURM_JOB_ID");
        // All nodes start at the same time, so a round need not wait long for more nodes.
        let mut options = format!("last_call_timeout=2,{COORDINATOR_TIMEOUT}");
        if let [first] = voters {
            let is_host = u8::from(*first == self.own);
            let _ = write!(options, ",is_host={is_host}");
        }
        add("rdzv_conf", options, "SLURMD_NODENAME");
        Ok(scheduled)
    }

    /// Returns the nodes that are endpoints of the coordinator.
    ///
    /// With spare nodes and at least three nodes, there are three endpoints, so the job continues
    /// after the loss of the first node. A group of listed voters waits at its start until all of
    /// them run. A node whose check fails never runs, so with `--node-check` only the first node is
    /// an endpoint. The option `voters` overrides these numbers.
    fn voters(&self, given: impl Fn(&str) -> Option<String>) -> &[String] {
        let asked = given("rdzv_conf").and_then(|options| {
            let mut pairs = options.split(',').filter_map(|pair| pair.split_once('='));
            let voters = pairs.find(|(name, _)| name.trim() == "voters");
            voters.and_then(|(_, number)| number.trim().parse().ok())
        });
        let has_spares = spares(&given) > 0;
        let count = match asked {
            Some(count) => usize::max(count, 1),
            None if has_spares && given("node_check").is_none() => 3,
            None => 1,
        };
        self.names.get(..count).unwrap_or(&self.names[..1])
    }

    /// Refuses several tasks on a node: each would start all workers of the node.
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
                        "step {} of Slurm job {} has several tasks on a node ({NAME}={tasks}), and \
                         each task would start all workers of the node\n\
                         help: use --ntasks-per-node=1, or specify --scheduler none if this is \
                         intended",
                        self.step, self.job
                    )));
                }
                None => {
                    return Err(unreadable(
                        NAME,
                        &tasks,
                        "it does not contain numbers of tasks",
                    ));
                }
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

    /// Returns a port that other jobs on the node probably do not use.
    fn port(&self) -> u64 {
        let name = format!("{}.{}.{}", self.job, self.step, self.restart);
        // FNV-1a: every node must compute the same port, even with another build of rdzv.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        PORTS.start + hash % (PORTS.end - PORTS.start)
    }

    /// Returns a warning if `--nnodes` and `--spares` do not match the step's size.
    fn disagrees(&self, nnodes: &str, spares: u64) -> Option<String> {
        let nodes = self.nodes;
        let bound = |text: &str| text.trim().parse::<u64>().ok();
        let (least, most) = nnodes.split_once(':').unwrap_or((nnodes, nnodes));
        let (least, most) = (bound(least)?, bound(most)?);
        if most.saturating_add(spares) < nodes {
            return Some(format!(
                "--nnodes {nnodes} in a step of {nodes} nodes: the other nodes have no workers \
                 until a node is lost"
            ));
        }
        (least > nodes).then(|| {
            format!(
                "--nnodes {nnodes} in a step of {nodes} nodes: the job waits for nodes that are \
                 not in the step"
            )
        })
    }
}

/// Returns the value of `--spares`; 0 without it.
fn spares(given: impl Fn(&str) -> Option<String>) -> u64 {
    given("spares").map_or(0, |number| number.parse().unwrap_or(0))
}

/// Returns the number of visible accelerators of the step on this node.
///
/// `None` if Slurm counts no accelerators.
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
