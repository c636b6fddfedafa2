"""What happens to a job in its life, under rdzv and under torchrun, as a table of `docs/slurm.md`.

Run by `cargo xtask slurm-events`. Each event is one job of light workers under each launcher. An event in which rdzv does
worse than torchrun, and a process that a job leaves behind, are errors.
"""

import itertools
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import launching
from slurm.cluster import ENDED, Cluster, Job, await_value
from slurm.test_slurm import ONE_EACH, ROOT, TRAIN, documented

# Longer than a job needs that goes on, or ends, by itself.
LIMIT = 40
LAUNCHERS = {"rdzv": "rdzv run", "torchrun": "torchrun"}
BEGIN, END = "<!-- events: begin -->\n", "<!-- events: end -->\n"
PORTS = itertools.count(30_100)


@dataclass
class Seen:
    """What a launcher has made of an event: in words, and how good it is."""

    text: str
    worth: float


def submit(cluster: Cluster, script: str, *flags, **options) -> Job:
    return cluster.batch(script, *ONE_EACH, *flags, files=TRAIN, **options)


def three(cluster, launcher, nodes="3", more="", srun="", where="n1,n2,n3", flags=(), **options) -> Job:
    """A job of three nodes with two workers each, which meet at the first."""
    first = where.split(",")[0]
    rendezvous = f"--rdzv-id $SLURM_JOB_ID --rdzv-backend c10d --rdzv-endpoint {first}:{next(PORTS)}"
    line = f"srun {srun} {LAUNCHERS[launcher]} --nnodes {nodes} --nproc-per-node 2 {rendezvous} {more} train.py\n"
    return submit(cluster, line, "-N3", "-w", where, *flags, **options)


def begun(job: Job, count=6) -> Job:
    job.await_said("start", count, 120)
    return job


def over(job: Job, limit: float = LIMIT) -> tuple[str, float]:
    """The state in which a job ends, and after how long; one that does not is cancelled."""
    began = time.monotonic()
    try:
        state = await_value(job.state, lambda state: state in ENDED, limit)
    except AssertionError:
        state = f"still {job.state()}"
        job.cancel()
    took = time.monotonic() - began
    job.await_state(*ENDED)
    job.no_orphan()
    return state, took


def ending(job: Job, good=("COMPLETED",), before="", limit: float = LIMIT) -> Seen:
    state, took = over(job, limit)
    return Seen(f"{before}{state} after {took:.1f} s", state in good)


def finished(job: Job, before: str) -> Seen:
    """Of a job that goes on."""
    job.finish()
    state, _ = over(job)
    return Seen(f"{before}, {state}", state == "COMPLETED")


def first_worker(cluster, launcher):
    at = time.time()
    job = begun(three(cluster, launcher))
    took = min(line["time"] for line in job.said("start")) - at
    return Seen(f"{took:.1f} s", finished(job, "").worth - took)


def no_flags(cluster, launcher):
    job = begun(submit(cluster, f"srun {LAUNCHERS[launcher]} train.py\n", "-N3"), 3)
    world = job.said("start")[0]["world"]
    finished(job, "")
    return Seen("one job of three" if world == 3 else "three jobs of one", world)


def only_a_number(cluster, launcher):
    job = submit(cluster, f"srun {LAUNCHERS[launcher]} --nnodes 3 train.py\n", "-N3")
    time.sleep(12)
    says = "waiting for nodes" in job.output() or "no store has answered" in job.output()
    job.cancel()
    over(job)
    return Seen("each waits, and says for whom" if says else "each waits, and says nothing", says)


def two_tasks(cluster, launcher):
    flags = ("-N3", "--ntasks-per-node=2")
    job = cluster.batch(f"srun {LAUNCHERS[launcher]} train.py\n", *flags, files=TRAIN)
    said = lambda: job.said("start") or job.state() in ENDED
    await_value(said, bool, 60)
    refused = not job.said("start")
    job.finish()
    state, _ = over(job)
    return Seen("refused with a sentence" if refused else f"two launchers on each node, {state}", refused)


def cancelled(cluster, launcher):
    job = begun(three(cluster, launcher))
    job.cancel()
    state, took = over(job)
    saved = len(job.said("saved"))
    return Seen(f"{saved} of 6 save, {state} after {took:.1f} s", saved)


def deaf(cluster, launcher):
    script = "trap '' TERM; touch deaf-$RANK; while :; do sleep 1; done"
    line = f'srun {LAUNCHERS[launcher]} --no-python bash -c "$SCRIPT"\n'
    if launcher == "torchrun":
        line = line.replace("--no-python", f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:{next(PORTS)} --no-python")
    job = submit(cluster, line, "-N2", "-w", "n1,n2", env={"SCRIPT": script})
    await_value(lambda: len(list(job.folder.glob("deaf-*"))), lambda count: count == 2, 90)
    job.cancel()
    state, took = over(job)
    return Seen(f"{state} after {took:.1f} s", -took if state == "CANCELLED" else -LIMIT)


def time_limit(cluster, launcher):
    job = begun(three(cluster, launcher, flags=("--time=1",)))
    state, _ = over(job, 150)
    saved = len(job.said("saved"))
    return Seen(f"{saved} of 6 save, {state}", saved)


def user_signal(cluster, launcher):
    job = begun(three(cluster, launcher))
    job.signal("USR1")
    return after_signal(job)


def ignored_signal(cluster, launcher):
    line = f"srun sh -c 'trap \"\" USR1; exec {LAUNCHERS[launcher]} train.py'\n"
    job = begun(submit(cluster, line, "-N2"), 2)
    job.signal("USR1")
    time.sleep(1)
    return finished(job, "no worker hears of it")


def after_signal(job: Job) -> Seen:
    try:
        await_value(lambda: len(job.said("signal")), lambda count: count >= 6, 5)
    except AssertionError:
        pass
    heard = len(job.said("signal"))
    return finished(job, f"{heard} of 6 workers hear of it")


def terminated(cluster, launcher):
    job = begun(three(cluster, launcher))
    job.signal("TERM")
    state, _ = over(job)
    saved = len(job.said("saved"))
    return Seen(f"{saved} of 6 save, {state}", saved)


def requeued(cluster, launcher):
    job = begun(three(cluster, launcher, flags=("--requeue",)))
    job.control("requeue", job.id)
    job.await_state("PENDING")
    job.start_soon()
    begun(job, 12)
    return finished(job, f"second start with SLURM_RESTART_COUNT={job.said('start')[-1]['restart']}")


def suspended(cluster, launcher):
    job = begun(three(cluster, launcher))
    job.control("suspend", job.id)
    time.sleep(25)
    job.control("resume", job.id)
    return finished(job, "goes on")


def raises(cluster, launcher):
    return ending(three(cluster, launcher, env={"FAIL": "3"}), good=("FAILED",))


def next_round(job: Job, count: int, action) -> str:
    """How long after it so many workers have started anew; empty if they do not."""
    at = time.time()
    action()
    again = lambda: [line["time"] for line in job.said("start") if line["time"] > at]
    try:
        return f"next round after {max(await_value(again, lambda times: len(times) >= count, LIMIT)) - at:.1f} s"
    except AssertionError:
        return ""


def went_on(job: Job, went: str) -> Seen:
    if not went:
        state, _ = over(job, 1)
        return Seen(f"no round within {LIMIT} s ({state})", -1)
    return finished(job, went)


def lost_agent(cluster, launcher):
    job = begun(three(cluster, launcher, nodes="2:3"))
    seen = went_on(job, next_round(job, 4, lambda: job.kill_launcher("n2")))
    # Slurm returns the worst code of all tasks.
    return Seen(seen.text, seen.worth >= 0)


def lost_head(cluster, launcher):
    job = begun(three(cluster, launcher, nodes="2:3"))
    job.kill_launcher("n1")
    state, took = over(job, 90)
    return Seen(f"{state} after {took:.1f} s", state in ("COMPLETED", "FAILED") and -took)


def spare(cluster, launcher, first=False):
    script = documented("slurm.md", "--spares 1")
    if launcher == "torchrun":
        rendezvous = f"--rdzv-id 1 --rdzv-backend c10d --rdzv-endpoint n1:{next(PORTS)} --max-restarts 3"
        script = f"srun --no-kill --kill-on-bad-exit=0 torchrun --nnodes 3 {rendezvous} train.py\n"
    while True:
        job = begun(submit(cluster, script, "-N4"), 3)
        hosts = {line["host"] for line in job.said("start")}
        if not first:
            lost = (hosts - {"n1"}).pop()
        elif "n1" in hosts:
            lost = "n1"
        else:
            # The node in reserve is the last that came; here it is a node with workers that is lost.
            job.finish()
            over(job)
            continue
        return went_on(job, next_round(job, 3, lambda: job.kill_launcher(lost)))


def power(cluster, launcher, keep: bool):
    flags = ("--no-kill",) if keep else ("--requeue",)
    srun = "--kill-on-bad-exit=0" + (" --no-kill" if keep else "")
    job = begun(three(cluster, launcher, nodes="2:3", srun=srun, where="n2,n3,n4", flags=flags))
    try:
        went = next_round(job, 4, lambda: cluster.power_off("n4"))
        if keep:
            return went_on(job, went)
        job.await_state("PENDING")
        job.no_orphan()
        seen = Seen((f"{went}; " if went else "") + "then Slurm queues the job again", 1)
        job.cancel()
        return seen
    finally:
        cluster.power_on("n4")
        cluster.await_idle(["n4"])


def preempted(cluster, launcher):
    script = documented("slurm.md", "--preempt-signal USR1 --preempt-grace 110 train.py")
    if launcher == "torchrun":
        rendezvous = f"--rdzv-id 1 --rdzv-backend c10d --rdzv-endpoint n1:{next(PORTS)}"
        script = f"#SBATCH --requeue\nsrun torchrun --nnodes 4 {rendezvous} train.py\n"
    variables = {"SAVE_ON": "SIGUSR1,SIGTERM", "PET_NPROC_PER_NODE": "2"}
    job = begun(submit(cluster, script, "-N4", "-c40", "--time=10", env=variables), 8)
    high = cluster.batch("srun -c40 true\n", "-p", "high", "-N4", "-c40", *ONE_EACH)
    await_value(job.info, lambda info: info["JobState"] in (*ENDED, "PENDING"), 60)
    high.completed()
    saved, state = len({line["rank"] for line in job.said("saved")}), job.state()
    job.no_orphan()
    if state != "PENDING":
        return Seen(f"{saved} of 8 save; {state}, not queued again", 0)
    job.start_soon()
    begun(job, 16)
    return finished(job, f"{saved} of 8 save; queued again, goes on from there")


def without_daemon(cluster, launcher):
    job = begun(three(cluster, launcher))
    node = cluster.machines["n2"]
    node.run("sh", "-c", f"kill -9 $(cat {cluster.folder}/slurmd.n2.pid)")
    variables = launching.environment({"SLURM_CONF": str(cluster.configuration)})
    node.run("slurmd", "-N", "n2", env=variables)
    return finished(job, "goes on")


def one_port(cluster, launcher, run_id: str):
    line = f"srun {LAUNCHERS[launcher]} --nnodes 3 --nproc-per-node 2 --rdzv-id {run_id} --rdzv-backend c10d"
    line = f"{line} --rdzv-endpoint n1:{next(PORTS)} train.py\n"
    first = begun(submit(cluster, line, "-N3", "-w", "n1,n2,n3"))
    second = submit(cluster, line, "-N3", "-w", "n1,n2,n3")
    ran = lambda: second.said("start") or second.state() in ENDED
    try:
        await_value(ran, bool, 20)
    except AssertionError:
        pass
    first.finish()
    state, took = over(first)
    text = f"the first {state} after {took:.1f} s"
    second.finish()
    state, took = over(second, 90)
    workers = len(second.said("start"))
    text = f"{text}, the second {state} after {took:.1f} s, {workers} of 6 workers began"
    return Seen(text, state != "COMPLETED" or workers == 6)


BESIDE = {
    "`sbatch` to the first worker": first_worker,
    "no flags": no_flags,
    "`--nnodes 3` and nothing else": only_a_number,
    "two tasks per node": two_tasks,
    "`scancel`, workers save": cancelled,
    "`scancel`, workers that ignore SIGTERM": deaf,
    "the time limit": time_limit,
    "`scancel --signal=USR1`": user_signal,
    "the same, ignored": ignored_signal,
    "`scancel --signal=TERM`": terminated,
    "`scontrol requeue`": requeued,
    "`scontrol suspend` for 25 s, `resume`": suspended,
    "a worker raises": raises,
    "a launcher of three killed, `2:3`": lost_agent,
    "the launcher of the first node killed, `2:3`": lost_head,
    "a launcher killed, one node in reserve": spare,
    "the launcher of the first node killed, one node in reserve": lambda cluster, launcher: spare(cluster, launcher, True),
}
ALONE = {
    "two jobs, one port of the first node, own run ids": lambda cluster, launcher: one_port(cluster, launcher, "$SLURM_JOB_ID"),
    "the same, one run id": lambda cluster, launcher: one_port(cluster, launcher, "same"),
    "slurmd of a node killed": without_daemon,
    "a node without power, `2:3`, `--no-kill`": lambda cluster, launcher: power(cluster, launcher, True),
    "the same without `--no-kill`": lambda cluster, launcher: power(cluster, launcher, False),
    "preempted by a partition of higher priority": preempted,
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="slurm-events-") as folder:
        cluster = Cluster(Path(folder), "cgroup")
        try:
            rows = run_all(cluster)
        finally:
            cluster.stop()
    table = ["| event | rdzv | torchrun |\n", "|---|---|---|\n"]
    table += [f"| {title} | {ours.text} | {theirs.text} |\n" for title, ours, theirs in rows]
    page = ROOT / "docs" / "slurm.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + "".join(table) + "\n" + END + rest.partition(END)[2])
    worse = [title for title, ours, theirs in rows if ours.worth < theirs.worth]
    if worse:
        sys.exit(f"worse than torchrun: {worse}")


def run_all(cluster: Cluster):
    def both(event):
        title, play = event
        seen = [play(cluster, launcher) for launcher in LAUNCHERS]
        print(f"{title}: {seen[0]} {seen[1]}", flush=True)
        return title, *seen

    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(both, BESIDE.items()))
    return beside + [both(event) for event in ALONE.items()]


if __name__ == "__main__":
    main()
