"""A real Slurm: a controller and four nodes, each with namespaces of its own, on a network of their own.

A node is a process with its own network, host name, mounts and processes, so it can lose its network or its
power; nothing of it reaches the network of this host, and all of it ends when its first process does.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import uuid
from pathlib import Path

import launching

NODES = ("n1", "n2", "n3", "n4")
CONTROLLER = "ctl"
HERE = Path(__file__).parent
FREEZER = Path("/sys/fs/cgroup/freezer")

# Longer than anything takes on a slow machine.
PATIENCE = 60

# A node is lost after 9 s. A job that is queued again waits for its start time, which tests set.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%n
StateSaveLocation={folder}/state
KillWait=4
SlurmdTimeout=9
JobCompType=jobcomp/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
NodeName={nodes} CPUs=64 RealMemory=64000
PartitionName=all Nodes={nodes} Default=YES State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes={nodes} State=UP PriorityTier=10 PreemptMode=OFF
"""

CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The variables of a user of the cluster."""
    kept = launching.environment()
    # What is tested is our own form, and PyTorch finds the node's network by its name.
    for name in ("RDZV_COMPAT_OUTPUT", "GLOO_SOCKET_IFNAME"):
        kept.pop(name, None)
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept = {name: value for name, value in kept.items() if not name.startswith("SLURM_")}
    return {**kept, **(extra or {})}


class Machine:
    """A set of namespaces with its first process."""

    def __init__(self, cluster: "Cluster", name: str, number: int, *command: str):
        self.name = name
        self.address = f"10.99.0.{number}"
        self.freezer = ""
        if cluster.proctrack == "cgroup":
            self.freezer = FREEZER / f"{cluster.name}-{name}"
            self.freezer.mkdir()
        # With its parent, unshare ends; with unshare, the first process and all others.
        words = ["setpriv", "--pdeathsig", "KILL", "unshare"]
        words += ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
        words += ["sh", HERE / "node.sh", name, self.address, cluster.hosts, self.freezer, *command]
        log = (cluster.folder / "log" / f"{name}.out").open("w")
        self.process = subprocess.Popen(
            [str(word) for word in words],
            env=environment({"SLURM_CONF": str(cluster.configuration)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()
        self.expect("made")
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.first = int(children.read_text())

    def expect(self, line: str):
        read = self.process.stdout.readline()
        assert read == f"{line}\n", f"{self.name} did not come up: {read!r}"

    def inside(self, *words) -> list[str]:
        """The command line that runs `words` on this machine."""
        kinds = ["--net", "--uts", "--mount", "--pid", f"--wd={os.getcwd()}"]
        return ["nsenter", "-t", str(self.first), *kinds, *(str(word) for word in words)]

    def run(self, *words, check=True, **options) -> str:
        ended = subprocess.run(
            self.inside(*words), capture_output=True, text=True, timeout=PATIENCE, **options
        )
        assert not check or ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended.stdout

    def power_off(self):
        """Everything on it ends at once, and nothing of it says so on the network."""
        try:
            os.kill(self.first, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        if self.freezer:
            remove_groups(self.freezer)
            self.freezer = ""


def remove_groups(folder: Path):
    """Removes a control group and those below it, when their last process has gone."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            for path, _, _ in os.walk(folder, topdown=False):
                os.rmdir(path)
            return
        except OSError:
            assert time.monotonic() < until, f"{folder} keeps processes"
            time.sleep(0.01)


def remove_groups_of_ended_runs():
    """Ends what a killed run has left in its control groups: no signal ends a frozen process."""
    for group in FREEZER.glob("rdzv-*"):
        owner = group.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            for tasks in group.rglob("cgroup.procs"):
                # Another run may do the same at this moment.
                with contextlib.suppress(OSError):
                    for process in tasks.read_text().split():
                        os.kill(int(process), signal.SIGKILL)
                    (tasks.parent / "freezer.state").write_text("THAWED")
            remove_groups(group)


class Cluster:
    """Slurm on four nodes; `stop` leaves no process and no control group behind."""

    def __init__(self, folder: Path, proctrack: str):
        self.folder = folder
        self.proctrack = proctrack
        self.name = f"rdzv-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.machines: dict[str, Machine] = {}
        if proctrack == "cgroup":
            remove_groups_of_ended_runs()
        self.configuration = folder / "slurm.conf"
        self.hosts = folder / "hosts"
        for name in ("log", "spool", "state", "munge", "jobs", "bin"):
            (folder / name).mkdir()
        for name, program in (("rdzv", launching.RDZV), ("torchrun", launching.TORCHRUN)):
            (folder / "bin" / name).symlink_to(program)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        addresses = {name: f"10.99.0.{number}" for number, name in enumerate(NODES, 1)}
        addresses[CONTROLLER] = "10.99.0.254"
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        self.hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        self.configuration.write_text(
            CONFIGURATION.format(
                controller=CONTROLLER,
                address=addresses[CONTROLLER],
                folder=folder,
                proctrack=proctrack,
                nodes="n[1-4]",
            )
        )
        (folder / "cgroup.conf").write_text(CGROUPS)
        munge = folder / "munge"
        start = f"""
            munged -F --force --num-threads=10 --socket={munge}/socket --key-file={key} --pid-file={munge}/pid \
                --log-file={munge}/log --seed-file={munge}/seed &
            exec slurmctld -D
        """
        try:
            controller = Machine(self, CONTROLLER, 254, "sh", "-c", start)
            self.machines[CONTROLLER] = controller
            for line in ("link add eth0 type bridge", "link set eth0 up"):
                controller.run("ip", *line.split())
            controller.process.stdin.write("\n")
            controller.process.stdin.flush()
            controller.expect("up")
            for name in NODES:
                self.power_on(name)
            self.await_idle(NODES)
        except BaseException:
            self.stop()
            raise

    @property
    def path(self) -> str:
        """Where users find programs."""
        return f"{self.folder}/bin{os.pathsep}{environment()['PATH']}"

    def power_on(self, name: str):
        node = Machine(self, name, NODES.index(name) + 1, "slurmd", "-D", "-N", name)
        self.machines[name] = node
        cable = f"link add {name} type veth peer name eth0 netns {node.first}".split()
        # From this host, which knows the process of the node by that number.
        bridge = ["nsenter", "-t", str(self.machines[CONTROLLER].first), "--net", "ip"]
        for words in (cable, ["link", "set", name, "master", "eth0"], ["link", "set", name, "up"]):
            subprocess.run([*bridge, *words], check=True)
        node.process.stdin.write("\n")
        node.process.stdin.flush()
        node.expect("up")

    def power_off(self, name: str):
        self.machines[CONTROLLER].run("ip", "link", "set", name, "down")
        self.machines.pop(name).power_off()
        # It goes with the network of the node, some time later.
        self.machines[CONTROLLER].run("ip", "link", "delete", name, check=False)

    def await_idle(self, names):
        def states():
            listed = self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N %t", check=False)
            return dict(line.split() for line in listed.splitlines())

        await_value(states, lambda found: all(found.get(name) == "idle" for name in names))

    def run(self, *words, env=None, **options) -> str:
        """Runs a command where users log in."""
        own = {"SLURM_CONF": str(self.configuration), "PATH": self.path}
        variables = environment({**own, **(env or {})})
        return self.machines[CONTROLLER].run(*words, env=variables, **options)

    def batch(self, script: str, *flags, env=None, files=None) -> "Job":
        """Submits a batch script; what it needs is in its folder."""
        return Job(self, script, flags, env or {}, files or {})

    def stop(self):
        for machine in reversed(self.machines.values()):
            machine.power_off()
        self.machines.clear()


def await_value(read, accepts, timeout: float = PATIENCE):
    """Reads until the value is accepted; Slurm tells nobody when it changes."""
    until = time.monotonic() + timeout
    while not accepts(value := read()):
        assert time.monotonic() < until, f"after {timeout} s still {value}"
        time.sleep(0.02)
    return value


class Job:
    """A batch job, with a folder for its files and for what its workers write."""

    def __init__(self, cluster: Cluster, script: str, flags, env, files):
        self.cluster = cluster
        self.mark = uuid.uuid4().hex
        self.folder = cluster.folder / "jobs" / self.mark
        self.folder.mkdir()
        for name, text in files.items():
            (self.folder / name).write_text(text)
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}")
        self.variables = {launching.MARK: self.mark, "JOB": str(self.folder), **env}
        words = ["sbatch", "--parsable", f"--chdir={self.folder}", "-o", "slurm-%a.out", *flags]
        self.begun = time.monotonic()
        self.id = cluster.run(*words, path, env=self.variables).strip()

    def info(self, job: str | None = None) -> dict[str, str]:
        text = self.cluster.run("scontrol", "-o", "show", "job", job or self.id)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def state(self) -> str:
        return self.info()["JobState"]

    def await_state(self, *states: str, timeout: float = PATIENCE) -> dict[str, str]:
        try:
            return await_value(self.info, lambda info: info["JobState"] in states, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def completed(self, timeout: float = PATIENCE) -> str:
        """Waits for the end, which has to be a good one, and returns the output."""
        self.await_state(*ENDED, timeout=timeout)
        info, output = self.info(), self.output()
        assert info["JobState"] == "COMPLETED", f"{info}\n{output}"
        self.no_orphan()
        return output

    def ended(self, state: str, timeout: float = PATIENCE) -> str:
        """The same for an end in this state."""
        self.await_state(*ENDED, timeout=timeout)
        info, output = self.info(), self.output()
        assert info["JobState"] == state, f"{info}\n{output}"
        self.no_orphan()
        return output

    def no_orphan(self):
        """What belongs to the job ends with it."""
        await_value(lambda: launching.marked(self.mark), lambda left: not left, 10)

    def signal(self, name: str):
        """Has Slurm signal the steps of the job, as `scancel --signal` does."""
        self.cluster.run("scancel", f"--signal={name}", self.id)

    def cancel(self):
        self.cluster.run("scancel", self.id)

    def control(self, *words):
        self.cluster.run("scontrol", *words)

    def start_soon(self):
        """A job that was queued again waits two minutes otherwise. In the second in which it was killed its nodes
        would refuse it."""
        self.control("update", f"jobid={self.id}", "StartTime=now+2")

    def output(self) -> str:
        outputs = sorted(self.folder.glob("slurm-*.out"))
        return "".join(path.read_text(errors="replace") for path in outputs)

    def reports(self) -> dict[str, dict]:
        """The lines that workers wrote, by name of their file."""
        found = {}
        for path in sorted(self.folder.glob("worker-*.json")):
            found[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def said(self, word: str) -> list[dict]:
        """All that workers said under this word."""
        return [line for lines in self.reports().values() for line in lines if line["say"] == word]

    def await_said(self, word: str, count: int, timeout: float = PATIENCE) -> list[dict]:
        try:
            return await_value(lambda: self.said(word), lambda said: len(said) >= count, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.info()}\n{self.output()}") from None

    def finish(self):
        """Tells the workers to end."""
        (self.folder / "finish").touch()

    def launchers(self, node: str) -> list[int]:
        """The processes of `rdzv run` on a node, as this host numbers them."""
        space = os.readlink(f"/proc/{self.cluster.machines[node].first}/ns/pid")
        found = []
        for pid in launching.marked(self.mark):
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") == space:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    if line[0].rsplit(b"/")[-1] in (b"rdzv", b"torchrun") or b"torchrun" in line[1]:
                        found.append(pid)
            except (OSError, IndexError):
                continue
        return found

    def kill_launcher(self, node: str):
        found = self.launchers(node)
        assert found, f"no launcher on {node}"
        # None of them sees another one end.
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, signum)
                except ProcessLookupError:
                    pass


# The job is over, and Slurm has cleared its nodes.
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
)
