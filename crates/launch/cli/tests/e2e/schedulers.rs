//! Tests of launches under cluster schedulers: Slurm and Kubernetes operators.
//!
//! The nodes are agents on this machine. A few lines of shell replace `srun`.

use crate::harness::{Ended, Job, free_port, shell};

/// Script that runs a copy of a command for each node, as `srun` does.
///
/// Each copy receives its index. The script exits with the exit code of the last copy that failed.
/// With `-w`, the script runs only one copy.
const SRUN: &str = r#"
case $1 in -w) shift 2; exec "$@";; esac
node=0
tasks=
export SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=$SLURM_NNODES SLURM_STEP_NODELIST="127.0.0.[1-$SLURM_NNODES]"
while [ $node -lt $SLURM_NNODES ]; do
    SLURM_NODEID=$node SLURM_PROCID=$node SLURMD_NODENAME=127.0.0.$((node + 1)) "$@" &
    tasks="$tasks $!"
    node=$((node + 1))
done
code=0
for task in $tasks; do wait $task || code=$?; done
exit $code
"#;

/// Training script; the interpreter is a shell.
const TRAIN: &str = r#"echo "$RANK/$WORLD_SIZE local $LOCAL_RANK run $TORCHELASTIC_RUN_ID $*""#;

/// Returns a batch script with `torchrun` and `srun` in its path.
fn sbatch(script: &str) -> Job {
    shell(
        r#"
        mkdir bin
        ln -s "$RDZV" bin/torchrun
        mv srun bin
        chmod +x bin/srun
        PATH=$PWD/bin:$PATH
        . ./job.sh
        "#,
    )
    .file("srun", &format!("#!/bin/sh\n{SRUN}"))
    .file("job.sh", script)
    .file("train.py", TRAIN)
    .env("PYTHON_EXEC", "/bin/sh")
    .env("OMP_NUM_THREADS", "1")
    .env("SLURM_NNODES", "2")
    .env("SLURM_JOB_ID", "4711")
    .env("PORT", &free_port().to_string())
}

fn four_workers(ended: &Ended, run: &str) {
    let line = |rank: u32| format!("{rank}/4 local {} run {run} --lr 1", rank % 2);
    assert_eq!(ended.sorted(), [line(0), line(1), line(2), line(3)]);
}

#[test]
fn nodes_of_a_slurm_job_meet_at_the_first_one() {
    let ended = sbatch(
        r#"
        head_node_ip=$(srun -w first echo 127.0.0.1)
        srun torchrun \
            --nnodes $SLURM_NNODES \
            --nproc_per_node 2 \
            --rdzv_id $SLURM_JOB_ID \
            --rdzv_backend c10d \
            --rdzv_endpoint $head_node_ip:$PORT \
            train.py --lr 1
        "#,
    );
    four_workers(&ended.expect(0), "4711");
}

#[test]
fn nodes_of_a_slurm_job_may_have_fixed_ranks() {
    let ended = sbatch(
        r#"
        export MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT WORLD_SIZE=2 RANK=0
        srun sh -c 'torchrun --nproc_per_node=2 --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID \
            --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py --lr 1'
        "#,
    );
    four_workers(&ended.expect(0), "none");
}

#[test]
fn a_failure_on_one_node_of_a_slurm_job_ends_all_of_it() {
    let ended = sbatch(
        r#"
        echo 'test "$RANK" = 1 && exit 3; exec sleep 1000' > train.py
        srun torchrun --nnodes 2 --nproc_per_node 1 --rdzv_backend c10d --rdzv_id 1 \
            --rdzv_endpoint 127.0.0.1:$PORT train.py
        "#,
    )
    .expect(1);
    ended.assert_stderr("exitcode  : 3");
    assert!(ended.took.as_secs() < 20, "{:?}", ended.took);
}

#[test]
fn a_step_of_a_slurm_job_needs_no_flags() {
    let job = free_port();
    let script = r#"srun "$RDZV" run --nproc-per-node 2 train.py --lr 1"#;
    let ended = sbatch(script).env("SLURM_JOB_ID", &job.to_string());
    four_workers(&ended.expect(0), &format!("slurm-{job}.0.0"));
    let script = r#"srun "$RDZV" run --explain train.py | grep -E "task  |nodes  |endpoint""#;
    let ended = sbatch(script).env("SLURM_JOB_ID", &job.to_string());
    let ended = ended.expect(0);
    let step = format!("Slurm job {job}, step 0, task 1 of 2, restart 0");
    for text in [&*step, "SLURM_STEP_NUM_NODES", "127.0.0.1:"] {
        ended.assert_stdout(text);
    }
}

#[test]
fn steps_in_which_the_nodes_cannot_meet_are_refused() {
    let ended = sbatch(r#"srun "$RDZV" run train.py"#).env("SLURM_STEP_TASKS_PER_NODE", "2(x2)");
    let ended = ended.expect(2);
    let text = "several tasks on a node (SLURM_STEP_TASKS_PER_NODE=2(x2))";
    ended.assert_stderr(text);
    let ended = sbatch(r#"srun sh -c 'SLURM_STEP_NODELIST="n[1-" "$RDZV" run train.py'"#);
    let ended = ended.expect(2);
    let text = "it has an opening bracket without a closing bracket";
    ended.assert_stderr(text);
    ended.assert_stderr("help: specify --scheduler none");
    let check = sbatch(r#"srun "$RDZV" check"#).env("SLURM_STEP_TASKS_PER_NODE", "2(x2)");
    let check = check.expect(2);
    check.assert_stderr("or specify --local to check only this node");
    assert!(!check.stderr.contains("--scheduler"), "{}", check.stderr);
}

#[test]
fn torchrun_a_batch_script_and_none_are_as_without_slurm() {
    let alone = |ended: &Ended| {
        let lines = ended.sorted();
        assert!(
            lines.iter().all(|line| line.starts_with("0/1 local 0")),
            "{lines:?}"
        );
        lines.len()
    };
    for launcher in ["torchrun", "\"$RDZV\" run --scheduler none"] {
        let ended = sbatch(&format!("srun {launcher} train.py")).expect(0);
        assert_eq!(alone(&ended), 2);
    }
    let variable = r#"RDZV_SCHEDULER=none srun "$RDZV" run train.py"#;
    assert_eq!(alone(&sbatch(variable).expect(0)), 2);
    let ended = sbatch(r#""$RDZV" run train.py"#).env("SLURM_JOB_NUM_NODES", "2");
    let ended = ended.expect(0);
    assert_eq!(alone(&ended), 1);
    let hint = "one of the 2 nodes of Slurm job 4711: run it with srun";
    ended.assert_stderr(hint);
    let wrong = sbatch(r#"RDZV_SCHEDULER=slrum "$RDZV" run train.py"#).expect(2);
    let text = "RDZV_SCHEDULER is 'slrum', but must be one of auto, slurm, none";
    wrong.assert_stderr(text);
}

#[test]
fn a_batch_script_can_ask_for_the_true_result() {
    let one = r#"srun sh -c '"$RDZV" run --report report-$SLURM_NODEID.json train.py'"#;
    let ended = sbatch(&format!("{one}\n\"$RDZV\" verdict report-*.json")).expect(0);
    let text = "run slurm-4711.0.0 succeeded on 2 nodes with 0 restarts";
    ended.assert_stdout(text);
    let fails = r#"echo 'test "$RANK" = 1 && exit 3; exec sleep 1000' > train.py"#;
    let one = one.replace("--report", "--exit-code worker --report");
    let script = format!("{fails}\n{one}\n\"$RDZV\" verdict report-*.json");
    let ended = sbatch(&script).env("SLURM_JOB_ID", "4712").expect(3);
    let text = "run slurm-4712.0.0 failed with 0 restarts: first failure: rank 1 on ";
    ended.assert_stdout(text);
    let ended = sbatch(r#""$RDZV" verdict nothing.json"#).expect(2);
    ended.assert_stderr("rdzv verdict: cannot read nothing.json: No such file");
}

#[test]
fn pods_get_their_settings_from_variables() {
    let fixed = r#"
        for node in 0 1; do
            PET_NODE_RANK=$node torchrun train.py --lr 1 &
            pods="$pods $!"
        done
        for pod in $pods; do wait $pod || exit 1; done
    "#;
    let settings = "export PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=127.0.0.1";
    let ended = sbatch(&format!("{settings} PET_MASTER_PORT=$PORT\n{fixed}"));
    four_workers(&ended.expect(0), "none");
    let settings = "export PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_RDZV_BACKEND=c10d";
    let met = "PET_RDZV_ENDPOINT=127.0.0.1:$PORT PET_RDZV_ID=pod PET_MAX_RESTARTS=3";
    let ended = sbatch(&format!(
        "{settings} {met}\n{}",
        fixed.replace("PET_NODE_RANK=$node", "")
    ));
    four_workers(&ended.expect(0), "pod");
}

#[test]
fn a_check_of_all_nodes_says_which_it_waits_for() {
    let script = r#"srun sh -c '[ $SLURM_NODEID = 1 ] || "$RDZV" check --timeout 5'"#;
    let ended = sbatch(script).env("SLURM_JOB_ID", "4713").expect(1);
    let line = "waiting for nodes: 1 of 2 have joined, 127.0.0.2 has not; ";
    assert_eq!(ended.stderr.matches(line).count(), 1, "{}", ended.stderr);
    ended.assert_stdout("127.0.0.2: the node did not join the check");
}

#[test]
fn a_job_with_the_run_id_of_another_one_has_not_succeeded() {
    let script = r#"
    echo 'touch on$RANK; until [ -e go ]; do sleep 0.02; done' > wait.py
    same="--nnodes 2 --rdzv-id same --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$PORT"
    SLURM_JOB_ID=1 srun "$RDZV" run $same wait.py &
    first=$!
    until [ -e on0 -a -e on1 ]; do sleep 0.02; done
    SLURM_JOB_ID=2 srun "$RDZV" run $same wait.py 2> second &
    second=$!
    until [ "$(grep -c 'in reserve' second)" = 2 ]; do sleep 0.02; done
    touch go
    wait $first && echo the first: $?
    wait $second || echo the second: $?
    cat second >&2
    "#;
    let ended = sbatch(script).expect(0);
    assert_eq!(ended.stdout, "the first: 0\nthe second: 1\n");
    let line = "the job of run 'same' has ended without this node, but the job of this node needs it: another job has the same";
    assert_eq!(ended.stderr.matches(line).count(), 2, "{}", ended.stderr);
}

#[test]
fn a_job_at_the_port_of_another_one_is_warned_of_its_store() {
    let script = r#"
    echo 'touch on$RUN$RANK; until [ -e go ]; do sleep 0.02; done' > wait.py
    here="--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$PORT"
    RUN=a SLURM_JOB_ID=1 srun "$RDZV" run $here wait.py 2> first &
    first=$!
    until [ -e ona0 -a -e ona1 ]; do sleep 0.02; done
    RUN=b SLURM_JOB_ID=2 srun "$RDZV" run $here wait.py &
    second=$!
    until [ -e onb0 -a -e onb1 ]; do sleep 0.02; done
    touch go
    wait $first && wait $second || echo a job has failed
    grep -c 'is hosted by an agent' first
    "#;
    let ended = sbatch(script).expect(1);
    assert_eq!(ended.stdout, "0\n", "{}", ended.stderr);
    let line = "is hosted by an agent of run 'slurm-1.0.0' and stops soon after that run ends; use \
                a different port for run 'slurm-2.0.0'";
    assert_eq!(ended.stderr.matches(line).count(), 2, "{}", ended.stderr);
}
