"""Tests of `rdzv run` under real Slurm: rendezvous, signals, losses and ends.

Each test has separate jobs, and several jobs share the nodes. The tests read commands of the
documentation from its pages.
"""

import re
import time
from pathlib import Path

import pytest

import launching
from slurm.cluster import NODES, await_value

ROOT = Path(__file__).parent.parent.parent
TRAIN = {"train.py": (Path(__file__).parent / "train.py").read_text()}
ONE_EACH = ("--ntasks-per-node=1",)


def documented(page: str, words: str) -> str:
    """Returns the code block with these words from a page of the documentation."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^( *)```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    found = [block for _, block in blocks if words in block]
    assert len(found) == 1, f"{words!r} is in {len(found)} blocks of {page}"
    return found[0]


def batch(cluster, script, *flags, files=None, **options):
    return cluster.batch(script, *ONE_EACH, *flags, files={**TRAIN, **(files or {})}, **options)


def workers(said) -> list[tuple]:
    """Returns node, rank and world size of each worker."""
    return sorted((line["host"], line["rank"], line["world"]) for line in said)


def spread(nodes: int, each: int, size: int) -> list[tuple]:
    """Returns the expected result of `workers` for a job on the first nodes."""
    return [(NODES[rank // each], rank, size) for rank in range(nodes * each)]


@pytest.fixture(scope="module", autouse=True)
def slow(cluster):
    """Starts slow jobs, which run in parallel with other tests."""
    limited = batch(cluster, "srun rdzv run train.py\n", "-N2", "-w", "n1,n2", "--time=1")
    flags = "--nproc-per-node 2 --max-restarts 0"
    suspended = batch(cluster, f"srun rdzv run {flags} train.py\n", "-N3", "-w", "n1,n2,n3")
    suspended.await_said("start", 6)
    suspended.control("suspend", suspended.id)
    jobs = {"limited": limited, "suspended": suspended, "at": time.monotonic()}
    yield jobs
    for job in (limited, suspended):
        job.cancel()
        job.no_orphan()


def test_no_flags_are_one_job_of_all_nodes(cluster):
    job = batch(cluster, documented("slurm.md", "srun rdzv run train.py"))
    said = job.await_said("start", 4)
    assert workers(said) == spread(4, 1, 4)
    assert {line["run"] for line in said} == {f"slurm-{job.id}.0.0"}
    job.finish()
    job.completed()


def test_the_script_with_flags_runs_as_it_is_documented(cluster):
    job = batch(cluster, documented("replacing-torchrun.md", "--rdzv-id \"$SLURM_JOB_ID\""))
    said = job.await_said("start", 32)
    assert workers(said) == spread(4, 8, 32)
    job.finish()
    job.completed()


def test_fixed_ranks_are_taken_from_slurm_where_the_task_runs(cluster):
    line = documented("replacing-torchrun.md", "--node-rank=$SLURM_NODEID")
    line = line.replace("--nproc-per-node=8", "--nproc-per-node=2")
    head = "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
    job = batch(cluster, head + line, "-N3", "-w", "n2,n3,n4")
    said = job.await_said("start", 6)
    assert [host for host, _, _ in workers(said)] == ["n2", "n2", "n3", "n3", "n4", "n4"]
    job.finish()
    job.completed()


def test_a_batch_script_a_shell_of_salloc_and_the_link_are_as_elsewhere(cluster):
    job = batch(cluster, "rdzv run train.py\n", "-N2")
    job.await_said("start", 1)
    job.finish()
    output = job.completed()
    assert f"one of the 2 nodes of Slurm job {job.id}: run it with srun" in output
    assert [line["world"] for line in job.said("start")] == [1]
    # As with torchrun, each node is a separate world, with its own port.
    line = "srun sh -c 'torchrun --master-port $((29600 + SLURM_NODEID)) train.py'\n"
    job = batch(cluster, line, "-N2", env={"PATH": path_with_link(cluster)})
    said = job.await_said("start", 2)
    job.finish()
    job.completed()
    assert [line["world"] for line in said] == [1, 1]
    script = "import os; print('world', os.environ['WORLD_SIZE'])"
    path = cluster.folder / "jobs" / "print_world.py"
    path.write_text(script)
    said = cluster.run("salloc", "-N2", "-Q", *ONE_EACH, "rdzv", "run", path)
    assert said == "world 1\n"
    said = cluster.run("salloc", "-N2", "-Q", *ONE_EACH, "srun", "rdzv", "run", path)
    assert said == "world 2\nworld 2\n"


def path_with_link(cluster) -> str:
    """Returns `PATH` that begins with the folder of rdzv's link `torchrun`."""
    folder = cluster.folder / "link"
    folder.mkdir(exist_ok=True)
    link = folder / "torchrun"
    if not link.exists():
        link.symlink_to(launching.RDZV)
    return f"{folder}:{cluster.path}"


def test_jobs_on_the_same_nodes_do_not_meet(cluster):
    two = [batch(cluster, "srun rdzv run train.py\n", "-N3", "-w", "n1,n2,n3") for _ in range(2)]
    for job in two:
        said = job.await_said("start", 3)
        assert workers(said) == spread(3, 1, 3)
        assert {line["run"] for line in said} == {f"slurm-{job.id}.0.0"}
        job.finish()
        job.completed()
    array = batch(cluster, "srun rdzv run train.py\n", "-N2", "--array=0-7")
    said = array.await_said("start", 16)
    assert [line["world"] for line in said] == [2] * 16
    runs = sorted(line["run"] for line in said)
    assert runs == sorted(f"slurm-{array.id}_{task}.0.0" for task in range(8) for _ in range(2))
    array.finish()
    array.no_orphan()


def test_several_tasks_on_a_node_are_refused(cluster):
    job = cluster.batch("srun rdzv run train.py\n", "-N2", "--ntasks-per-node=2", files=TRAIN)
    output = job.ended("FAILED")
    assert job.info()["ExitCode"] == "2:0"
    assert "has several tasks on a node (SLURM_STEP_TASKS_PER_NODE=2(x2))" in output
    assert not job.said("start")


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_signal_of_the_user_reaches_each_worker_once_and_training_goes_on(cluster, name):
    job = batch(cluster, "srun rdzv run --nproc-per-node 2 train.py\n", "-N3")
    job.await_said("start", 6)
    job.signal(name)
    job.await_said("signal", 6)
    job.finish()
    job.completed()
    assert sorted(line["rank"] for line in job.said("signal")) == [0, 1, 2, 3, 4, 5]
    assert {line["name"] for line in job.said("signal")} == {f"SIG{name}"}
    assert len(job.said("end")) == 6


def test_a_signal_that_is_ignored_stays_so(cluster):
    line = "srun sh -c 'trap \"\" USR1; exec rdzv run --nproc-per-node 2 train.py'\n"
    job = batch(cluster, line, "-N2")
    job.await_said("start", 4)
    job.signal("USR1")
    job.signal("USR2")
    job.await_said("signal", 4)
    job.finish()
    job.completed()
    assert {line["name"] for line in job.said("ignores")} == {"SIGUSR1"}
    assert [line["name"] for line in job.said("signal")] == ["SIGUSR2"] * 4


def test_a_preempted_job_saves_is_queued_again_and_goes_on(cluster):
    script = documented("slurm.md", "--preempt-signal USR1 --preempt-grace 110 train.py")
    # The job needs all processors, so that the two jobs cannot run at the same time.
    job = batch(
        cluster, script, "-c40", "--time=10", env={"SAVE_ON": "SIGUSR1", "PET_NPROC_PER_NODE": "2"}
    )
    job.await_said("start", 8)
    high = cluster.batch("srun -c40 true\n", "-p", "high", "-N4", "-c40", *ONE_EACH)
    saved = job.await_said("saved", 8)
    assert sorted(line["rank"] for line in saved) == list(range(8))
    high.completed()
    info = job.await_state("PENDING")
    assert info["Restarts"] == "1", info
    assert [line["name"] for line in job.said("signal")] == ["SIGUSR1"] * 8
    job.no_orphan()
    job.start_soon()
    again = [line for line in job.await_said("start", 16) if line["restart"] == "1"]
    steps = {line["rank"]: line["step"] for line in saved}
    assert {line["rank"]: line["step"] for line in again} == steps
    assert {line["run"] for line in again} == {f"slurm-{job.id}.0.1"}
    job.finish()
    job.completed()


def test_a_cancelled_job_has_its_shutdown_timeout_and_leaves_nothing(cluster):
    job = batch(cluster, "srun rdzv run --nproc-per-node 2 train.py\n", "-N3")
    job.await_said("start", 6)
    job.cancel()
    job.await_said("saved", 6)
    job.ended("CANCELLED")


def test_workers_that_hear_nothing_are_cancelled_too(cluster):
    script = "trap '' TERM; touch deaf-$RANK; while :; do sleep 1; done"
    line = "srun rdzv run --no-python bash -c \"$SCRIPT\"\n"
    job = batch(cluster, line, "-N2", env={"SCRIPT": script})
    await_value(lambda: len(list(job.folder.glob("deaf-*"))), lambda count: count == 2)
    job.cancel()
    job.ended("CANCELLED")


def test_a_worker_that_raises_ends_the_job_with_its_cause(cluster):
    job = batch(cluster, "srun rdzv run --nproc-per-node 2 train.py\n", "-N3", env={"FAIL": "3"})
    output = job.ended("FAILED")
    assert "first failure: rank 3 (local rank 1, " in output


def test_one_node_says_what_failed_and_the_others_name_it(cluster):
    job = batch(cluster, "srun rdzv run --nproc-per-node 2 train.py\n", "-N4", env={"FAIL": "3"})
    lines = job.ended("FAILED").splitlines()
    number = 1 + TRAIN["train.py"].split("raise ValueError")[0].count("\n")
    assert [line for line in lines if "raised in" in line] == [
        f"rdzv n2: raised in {job.folder}/train.py, line {number}, in <module>"
    ]
    for node in ("n1", "n3", "n4"):
        own = [line for line in lines if line.startswith(f"rdzv {node}: ")]
        own = [line for line in own if "this job has no token" not in line]
        assert len(own) == 1 and "rank 3" in own[0] and "ValueError: boom" in own[0], own
    # Only one of the agents prints this warning.
    assert sum("this job has no token" in line for line in lines) == 1
    assert not [line for line in lines if line.startswith("rdzv: ")]


@pytest.mark.parametrize("first", [False, True])
def test_a_node_in_reserve_saves_the_job_and_the_verdict_says_so(cluster, first):
    job = batch(cluster, documented("slurm.md", "--spares 1"))
    said = job.await_said("start", 3)
    assert [line["world"] for line in said] == [3] * 3
    hosts = {line["host"] for line in said}
    # Three agents can elect a coordinator, and the first node may be lost like any other, whether
    # it has workers or not.
    lost = "n1" if first else (hosts - {"n1"}).pop()
    began = time.time()
    job.kill_launcher(lost)
    rounds = 6 if lost in hosts else 3
    job.await_said("start", rounds)
    again = [line for line in job.said("start") if line["time"] > began]
    if again:
        assert {line["host"] for line in again} == set(NODES) - {lost}
        print(f"{max(line['time'] for line in again) - began:.3f} s to the last worker of the next round")
    job.finish()
    output = job.completed()
    assert f"run slurm-{job.id}.0.0 succeeded on 3 nodes with 0 restarts" in output
    assert output.count("finished in") == 1


def test_the_verdict_on_a_job_that_failed_is_its_failure(cluster):
    job = batch(cluster, documented("slurm.md", "--spares 1"), env={"FAIL": "2"})
    output = job.ended("FAILED")
    assert job.info()["ExitCode"] == "1:0"
    assert f"run slurm-{job.id}.0.0 failed with 0 restarts: first failure: rank 2 on n" in output


def test_a_node_that_fails_its_check_withdraws_and_one_in_reserve_replaces_it(cluster):
    check = "test ! -e broken-$SLURMD_NODENAME || { echo GPU 0 is lost; exit 5; }"
    flags = "--spares 1 --max-restarts 1 --node-check \"$CHECK\""
    line = documented("slurm.md", "--spares 1").replace("--spares 1", flags)
    job = batch(cluster, line, env={"CHECK": check}, files={"broken-n3": ""})
    said = job.await_said("start", 3)
    assert {line["host"] for line in said} == {"n1", "n2", "n4"}
    job.finish()
    output = job.completed()
    assert f"rdzv n3: this node withdraws, because its check `{check}` failed: " in output
    assert "failed: it exited with code 5; its last line: GPU 0 is lost" in output
    assert "n3: task 2: Exited with exit code 77" in output


def test_a_node_is_checked_again_after_a_failure(cluster):
    check = "test ! -e crash-$SLURMD_NODENAME || sleep 1000"
    flags = "--spares 1 --max-restarts 1 --node-check-timeout 1 --node-check \"$CHECK\""
    line = documented("slurm.md", "--spares 1").replace("--spares 1", flags)
    job = batch(cluster, line, env={"CHECK": check})
    said = job.await_said("start", 3)
    broken = ({line["host"] for line in said} - {"n1"}).pop()
    began = time.time()
    (job.folder / f"crash-{broken}").touch()
    job.await_said("start", 6)
    again = [line for line in job.said("start") if line["time"] > began]
    assert {line["host"] for line in again} >= set(NODES) - {broken}
    job.finish()
    output = job.completed()
    assert f"rdzv {broken}: this node withdraws, because its check" in output
    assert "it did not exit within 1 s" in output
    assert len(job.said("end")) == 3


def test_a_node_whose_launcher_is_killed_is_replaced_without_a_restart(cluster):
    flags = "--nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint n1:29555"
    line = f"srun --kill-on-bad-exit=0 rdzv run {flags} train.py\n"
    job = batch(cluster, line, "-N3", "-w", "n1,n2,n3")
    job.await_said("start", 3)
    job.kill_launcher("n2")
    job.await_said("start", 5)
    assert [line["world"] for line in job.said("start")].count(2) == 2
    job.finish()
    job.ended("FAILED")
    assert len(job.said("end")) == 2


def test_a_node_without_power_is_lost_and_the_job_goes_on_without_it(cluster):
    flags = "--nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint n2:29556"
    conf = "--rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=3"
    line = f"srun --no-kill --kill-on-bad-exit=0 rdzv run {flags} {conf} train.py\n"
    job = batch(cluster, line, "-N3", "-w", "n2,n3,n4", "--no-kill")
    # Without --no-kill Slurm ends the job, and queues it again.
    line = line.replace("--no-kill ", "").replace(":29556", ":29557")
    other = batch(cluster, line, "-N3", "-w", "n2,n3,n4")
    for each in (job, other):
        each.await_said("start", 3)
    cluster.power_off("n4")
    try:
        job.await_said("start", 5)
        other.await_state("PENDING")
        other.no_orphan()
        job.finish()
        job.completed()
    finally:
        cluster.power_on("n4")
    cluster.await_idle(["n4"])
    assert other.info()["Restarts"] == "1"
    other.start_soon()
    second = await_value(
        lambda: [line for line in other.said("start") if line["restart"] == "1"],
        lambda said: len(said) == 3,
    )
    assert len({line["host"] for line in second}) == 3
    other.finish()
    other.completed()


EXPLAINED = """\
Scheduler
  task                             Slurm job JOB, step 0, task 1 of 3, restart 0  the variables that Slurm sets in every step
  scheduler                        auto                                      default of --scheduler

Nodes and workers
  nodes                            3                                         SLURM_STEP_NUM_NODES
  spare nodes                      0                                         default of --spares
  workers on this node             1                                         default of --nproc-per-node
  role                             default                                   default of --role

Rendezvous
  backend                          c10d                                      SLURM_STEP_ID
  endpoint                         n1:PORT                                  SLURM_STEP_NODELIST
  run id                           slurm-JOB.0.0                              SLURM_JOB_ID
  this node's rank                 not known yet                             assigned by the rendezvous, for each round
  settings                         coordinator_timeout=5, is_host=0, last_call_timeout=2            SLURMD_NODENAME last_call_timeout=2,coordinator_timeout=5,is_host=0
  coordinator                      the agent or store at n1:PORT                    --rdzv-conf is_host is false
"""


def test_check_tells_what_is_wrong_with_the_nodes_of_a_step(cluster):
    job = batch(cluster, "srun rdzv check --min-free 1MiB\n", "-N4")
    # On a busy machine, rdzv also reports the node for which it waits.
    lines = [line for line in job.completed().splitlines() if not line.startswith("rdzv")]
    assert lines[-1] == "4 of 4 nodes passed the check"
    assert [line.split(":")[0] for line in lines[:4]] == list(NODES)
    assert all("rdzv 0." in line and "PyTorch 2." in line for line in lines[:4]), lines
    # One node has no Python, one has no space, and one does not join.
    line = """srun sh -c 'case $SLURMD_NODENAME in
        n2) export VIRTUAL_ENV= PATH=/nowhere:$LINKS;;
        n3) export TMPDIR=/proc;;
        n4) exit 0;;
    esac
    exec rdzv check --timeout 3'
    """
    job = batch(cluster, line, "-N4", env={"LINKS": str(cluster.folder / "bin")})
    output = job.ended("FAILED")
    assert "n4: the node did not join the check" in output
    assert "silent" not in output
    assert "problem on n2: Python: VIRTUAL_ENV and PATH contain no Python" in output
    assert "problem on n3: /proc: " in output
    for task in (0, 1, 2):
        assert f"task {task}: Exited with exit code 1" in output or "tasks 0-2: Exited with exit code 1" in output


def test_explain_names_the_variable_of_each_value(cluster):
    line = "srun sh -c 'rdzv run --explain train.py > explained-$SLURM_PROCID'\n"
    job = batch(cluster, line, "-N3", "-w", "n1,n2,n3")
    job.completed()
    text = (job.folder / "explained-1").read_text()
    # KillWait of this cluster is 8 s.
    assert re.search(r"time before SIGKILL +7 s .*time after which Slurm kills the agent", text), text
    text = text[text.index("Scheduler") : text.index("  MASTER_ADDR")]
    text = re.sub(r"n1:[23]\d{4}\b", "n1:PORT", text)
    # The job id differs in each run, and `squeezed` ignores the width of the columns.
    text = re.sub(rf"(slurm-|job ){job.id}\b", r"\1JOB", text)
    assert squeezed(text) == squeezed(EXPLAINED)


def squeezed(text: str) -> list[str]:
    return [re.sub(r" {2,}", "  ", line) for line in text.splitlines()]


def test_suspended_workers_stand_still_and_go_on(cluster, slow):
    job = slow["suspended"]
    # Waits longer than the time after which a silent node is lost.
    time.sleep(max(0.0, slow["at"] + 25 - time.monotonic()))
    job.control("resume", job.id)
    job.finish()
    output = job.completed()
    assert len(job.said("start")) == 6 and len(job.said("end")) == 6, output


def test_a_job_at_its_time_limit_has_its_shutdown_timeout_and_leaves_nothing(cluster, slow):
    job = slow["limited"]
    job.await_said("saved", 2, timeout=120)
    job.ended("TIMEOUT")
