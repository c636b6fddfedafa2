"""Real Slurm cluster: a controller and four nodes in namespaces.

A node is a process with its own network, host name, mounts and processes, so a test can cut its network
or its power. The nodes share a separate network and cannot reach the network of this host. All processes
of a node end with its first process.
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

# Longer than any step takes on a slow machine.
PATIENCE = 60

# Slurm considers a node lost after 9 s. A requeued job waits for its start time, which tests set.
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
KillWait=8
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
    """Returns the environment variables of a user of the cluster."""
    kept = launching.environment()
    # The tests check rdzv's own format, and PyTorch finds the node's network by its host name.
    for name in ("RDZV_COMPAT_OUTPUT", "GLOO_SOCKET_IFNAME"):
        kept.pop(name, None)
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept = {name: value for name, value in kept.items() if not name.startswith("SLURM_")}
    return {**kept, **(extra or {})}


class Machine:
    """Machine of the cluster: a set of namespaces with its first process."""

    def __init__(self, cluster: "Cluster", name: str, number: int, *command: str):
        self.name = name
        self.address = f"10.99.0.{number}"
        self.freezer = ""
        if cluster.proctrack == "cgroup":
            self.freezer = FREEZER / f"{cluster.name}-{name}"
            self.freezer.mkdir()
        # unshare ends with its parent. The first process and all others end with unshare.
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
        """Returns the command line that runs `words` on this machine."""
        kinds = ["--net", "--uts", "--mount", "--pid", f"--wd={os.getcwd()}"]
        return ["nsenter", "-t", str(self.first), *kinds, *(str(word) for word in words)]

    def run(self, *words, check=True, **options) -> str:
        ended = subprocess.run(
            self.inside(*words), capture_output=True, text=True, timeout=PATIENCE, **options
        )
        assert not check or ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended.stdout

    def power_off(self):
        """Kills all processes immediately, so that none of them sends a message."""
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
    """Removes a control group and its children after the end of their processes."""
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
    """Kills the frozen processes that a killed run left in its control groups."""
    for group in FREEZER.glob("rdzv-*"):
        owner = group.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            for tasks in group.rglob("cgroup.procs"):
                # Another run may do the same at the same time.
                with contextlib.suppress(OSError):
                    for process in tasks.read_text().split():
                        os.kill(int(process), signal.SIGKILL)
                    (tasks.parent / "freezer.state").write_text("THAWED")
            remove_groups(group)


class Cluster:
    """Slurm on four nodes. `stop` removes all processes and control groups."""

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
        """Returns the `PATH` of users."""
        return f"{self.folder}/bin{os.pathsep}{environment()['PATH']}"

    def power_on(self, name: str):
        node = Machine(self, name, NODES.index(name) + 1, "slurmd", "-D", "-N", name)
        self.machines[name] = node
        cable = f"link add {name} type veth peer name eth0 netns {node.first}".split()
        # This command runs on this host, because the process id of the node is valid here.
        bridge = ["nsenter", "-t", str(self.machines[CONTROLLER].first), "--net", "ip"]
        for words in (cable, ["link", "set", name, "master", "eth0"], ["link", "set", name, "up"]):
            subprocess.run([*bridge, *words], check=True)
        node.process.stdin.write("\n")
        node.process.stdin.flush()
        node.expect("up")

    def power_off(self, name: str):
        self.machines[CONTROLLER].run("ip", "link", "set", name, "down")
        self.machines.pop(name).power_off()
        # The kernel also removes the link with the network of the node, some time later.
        self.machines[CONTROLLER].run("ip", "link", "delete", name, check=False)

    def await_idle(self, names):
        def states():
            listed = self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N %t", check=False)
            return dict(line.split() for line in listed.splitlines())

        await_value(states, lambda found: all(found.get(name) == "idle" for name in names))

    def run(self, *words, env=None, **options) -> str:
        """Runs a command on the machine where users log in."""
        own = {"SLURM_CONF": str(self.configuration), "PATH": self.path}
        variables = environment({**own, **(env or {})})
        return self.machines[CONTROLLER].run(*words, env=variables, **options)

    def batch(self, script: str, *flags, env=None, files=None) -> "Job":
        """Submits a batch script. Its files are in the folder of the job."""
        return Job(self, script, flags, env or {}, files or {})

    def stop(self):
        for machine in reversed(self.machines.values()):
            machine.power_off()
        self.machines.clear()


def await_value(read, accepts, timeout: float = PATIENCE):
    """Polls until the value is accepted, because Slurm sends no notification."""
    until = time.monotonic() + timeout
    while not accepts(value := read()):
        assert time.monotonic() < until, f"after {timeout} s still {value}"
        time.sleep(0.02)
    return value


class Job:
    """Batch job, with a folder for its files and for the output of its workers."""

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
        """Waits for the end, checks that the job succeeded, and returns the output."""
        self.await_state(*ENDED, timeout=timeout)
        info, output = self.info(), self.output()
        assert info["JobState"] == "COMPLETED", f"{info}\n{output}"
        self.no_orphan()
        return output

    def ended(self, state: str, timeout: float = PATIENCE) -> str:
        """Waits for the end, checks its state, and returns the output."""
        self.await_state(*ENDED, timeout=timeout)
        info, output = self.info(), self.output()
        assert info["JobState"] == state, f"{info}\n{output}"
        self.no_orphan()
        return output

    def no_orphan(self):
        """Checks that no process of the job remains."""
        await_value(lambda: launching.marked(self.mark), lambda left: not left, 10)

    def signal(self, name: str):
        """Sends a signal to the steps of the job, with `scancel --signal`."""
        self.cluster.run("scancel", f"--signal={name}", self.id)

    def cancel(self):
        self.cluster.run("scancel", self.id)

    def control(self, *words):
        self.cluster.run("scontrol", *words)

    def start_soon(self):
        """Sets an early start time for a requeued job, which would wait two minutes.

        The nodes would refuse the job in the same second in which Slurm killed it."""
        self.control("update", f"jobid={self.id}", "StartTime=now+2")

    def output(self) -> str:
        outputs = sorted(self.folder.glob("slurm-*.out"))
        return "".join(path.read_text(errors="replace") for path in outputs)

    def reports(self) -> dict[str, dict]:
        """Returns the lines that workers wrote, by the name of their file."""
        found = {}
        for path in sorted(self.folder.glob("worker-*.json")):
            found[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def said(self, word: str) -> list[dict]:
        """Returns all lines of workers with this word."""
        return [line for lines in self.reports().values() for line in lines if line["say"] == word]

    def await_said(self, word: str, count: int, timeout: float = PATIENCE) -> list[dict]:
        try:
            return await_value(lambda: self.said(word), lambda said: len(said) >= count, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.info()}\n{self.output()}") from None

    def finish(self):
        """Creates the file that makes the workers end."""
        (self.folder / "finish").touch()

    def launchers(self, node: str) -> list[int]:
        """Returns the processes of the launcher on a node, with the ids of this host."""
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
        # Stops all processes first, so that none of them can react to the end of another one.
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, signum)
                except ProcessLookupError:
                    pass


# States in which the job is over, and Slurm has cleaned up its nodes.
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
)
