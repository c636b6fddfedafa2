"""Job whose agents join and leave, and whose workers report the world size."""

import os
import select
import signal
import time
from contextlib import ExitStack

from launching import RDZV, TORCHRUN, Running, free_port, worker

REPORT_WORLD = worker("report_world.py")

# Short limits, so that lost agents are detected and rounds complete within seconds.
QUICK = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=3"
PATIENCE = 180


class Job:
    """Agents with the same endpoint. The end of a `with` statement kills them."""

    def __init__(
        self,
        folder,
        nodes: str,
        endpoint: str | None = None,
        options: str = QUICK,
        program: str = REPORT_WORLD,
        restarts: int = 3,
    ):
        self.folder = folder
        self.program = program
        self.restarts = restarts
        self.nodes = nodes
        self.endpoint = endpoint or f"127.0.0.1:{free_port()}"
        self.options = options
        self.agents: dict[str, Running] = {}
        self.worlds: dict[str, int] = {}
        self.unread = b""
        self.finishing = ExitStack()
        for pipe in ("reports", "finish"):
            os.mkfifo(folder / pipe)
        # Open for reading and writing, so that the pipe never reports its end.
        self.reports = os.open(folder / "reports", os.O_RDWR | os.O_NONBLOCK)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for agent in self.agents.values():
            agent.clear()
        os.close(self.reports)
        self.finishing.close()

    def start(self, launcher: str, name: str, address: str, options: str = "", *flags):
        """Starts an agent of rdzv or torchrun, under a name that the test chooses."""
        words = [RDZV, "run"] if launcher == "rdzv" else [TORCHRUN]
        conf = ",".join(part for part in (self.options, options) if part)
        self.agents[name] = Running(
            [
                *words,
                *("--nnodes", self.nodes, "--rdzv-backend", "c10d", "--rdzv-id", "job"),
                *("--rdzv-endpoint", self.endpoint, "--rdzv-conf", conf),
                *("--local-addr", address, "--max-restarts", self.restarts, *flags),
                *(self.program, self.folder, name),
            ]
        )

    def await_world(self, size: int, *names: str):
        """Waits until the workers of these agents are in a group of this size."""
        until = time.monotonic() + PATIENCE
        while any(self.worlds.get(name) != size for name in names):
            left = until - time.monotonic()
            ready, _, _ = select.select([self.reports], [], [], max(left, 0))
            assert ready, f"no world of {size} for {names}: {self.worlds} {self.outputs()}"
            self.unread += os.read(self.reports, 65536)
            *lines, self.unread = self.unread.split(b"\n")
            for line in lines:
                name, _, world = line.decode().split()
                self.worlds[name] = int(world)

    def outputs(self) -> str:
        """Ends the agents and returns their output, for a failed test."""
        texts = []
        for name, agent in self.agents.items():
            agent.clear()
            stdout, stderr = agent.process.communicate()
            texts.append(f"--- {name}: exit {agent.process.returncode}\n{stdout}{stderr}")
        return "\n".join(texts)

    def leave(self, name: str):
        """Ends an agent in the way of a scheduler."""
        agent = self.agents.pop(name)
        agent.process.send_signal(signal.SIGTERM)
        finished = agent.finish()
        assert finished.code == 1, finished.all
        del self.worlds[name]

    def kill(self, name: str):
        """Kills an agent and all its processes, so that it cannot send a message."""
        agent = self.agents.pop(name)
        agent.clear()
        agent.process.communicate()
        del self.worlds[name]

    def finish(self):
        """Lets all workers end, and checks that every agent succeeds."""
        # Open for reading and writing, so that this call does not wait for readers.
        finish = os.open(self.folder / "finish", os.O_RDWR)
        self.finishing.callback(os.close, finish)
        for name, agent in self.agents.items():
            finished = agent.finish()
            assert finished.code == 0, f"{name}: {finished.all}"
