"""Agents of PyTorch's torchrun and of `rdzv run` in one job.

They form a round together, and a new one after each change.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from ports import free_port

LIMIT_SECONDS = 120

# Worker that writes its world size and rank, and runs until the test creates the file `end`.
WORKER = """
    import os, sys, time
    folder = sys.argv[1]
    line = "{WORLD_SIZE} {RANK} {TORCHELASTIC_RUN_ID}\\n".format(**os.environ)
    with open(folder + "/seen", "a") as file:
        file.write(line)
    while not os.path.exists(folder + "/end"):
        time.sleep(0.02)
"""


class Job:
    def __init__(self, folder):
        self.folder = folder
        self.worker = folder / "worker.py"
        self.worker.write_text(textwrap.dedent(WORKER))
        (folder / "seen").touch()
        self.port = free_port()
        self.agents = []

    def start(self, launcher, workers=1):
        """Starts another agent."""
        program, backend = {
            "torchrun": (["torch.distributed.run"], "rdzv"),
            "rdzv": (["rdzv", "run"], "c10d"),
        }[launcher]
        command = [
            sys.executable, "-m", *program, "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{self.port}",
            "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=1", "--nnodes", "2:3",
            "--nproc-per-node", str(workers), str(self.worker), str(self.folder),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = (self.folder / f"agent{len(self.agents)}.log").open("w+")
        agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        agent.log = log
        self.agents.append(agent)
        return agent

    def formed(self, size):
        """Waits until the ranks of a world of this size are the last that started."""
        end = time.monotonic() + LIMIT_SECONDS
        while True:
            lines = (self.folder / "seen").read_text().splitlines()
            if sorted(lines[-size:]) == [f"{size} {rank} job" for rank in range(size)]:
                return
            assert time.monotonic() < end, f"no world of {size}:\n{lines}\n{self.logs()}"
            time.sleep(0.02)

    def logs(self):
        texts = []
        for agent in self.agents:
            agent.log.seek(0)
            texts.append(agent.log.read())
        return "\n----\n".join(texts)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for agent in self.agents:
            # The guards of rdzv's agents, and the workers, belong to the same process group.
            try:
                os.killpg(agent.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            agent.wait(30)
            agent.log.close()


@pytest.mark.parametrize("first, second", [("rdzv", "torchrun"), ("torchrun", "rdzv")])
def test_agents_of_both_launchers_are_one_job(tmp_path, first, second):
    with Job(tmp_path) as job:
        # Ranks are numbered over nodes with different numbers of workers.
        hosts = job.start(first, workers=2)
        others = job.start(second)
        job.formed(3)
        # An agent joins.
        third = job.start("torchrun")
        job.formed(4)
        # An agent is killed.
        os.killpg(third.pid, signal.SIGKILL)
        third.wait(30)
        job.formed(3)
        fourth = job.start("rdzv")
        job.formed(4)
        # An agent leaves.
        fourth.send_signal(signal.SIGTERM)
        fourth.wait(60)
        job.formed(3)
        (tmp_path / "end").touch()
        for agent in (hosts, others):
            assert agent.wait(LIMIT_SECONDS) == 0, job.logs()
