"""Measures the cost of views: `python3 cost.py RDZV [EARLIER]`.

The machine must be idle. RDZV and EARLIER are release builds. The script prints the wake-ups of an idle agent under both
programs, the processor time of the agents of two nodes while a page is open, and the processor time
of a coordinator of 1,250 nodes whose reports a viewer receives.
"""

import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SECONDS = 20
NODES = 1250
RANKS = 8
# Agents without a viewer report less often in a large job: see views/server.rs.
PERIOD = min(max(NODES / 800, 1.0), 1.8)
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICKS


def switches(pid):
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def agent_of(keeper):
    """Returns the agent, the youngest of the three processes of a launch."""
    pid = keeper
    for _ in range(2):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(children[0])
    return pid


class Job:
    """Two idle nodes with two ranks each."""

    def __init__(self, rdzv, folder):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        flags = f"--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port}"
        flags += " --rdzv-id=cost --redirects=3 --log-dir=logs --no-python sleep 1000"
        environment = os.environ | {"XDG_RUNTIME_DIR": folder}
        quiet = subprocess.DEVNULL
        self.nodes = [
            subprocess.Popen([rdzv, "run", *flags.split()], cwd=folder, env=environment, stdout=quiet, stderr=quiet)
            for _ in range(2)
        ]
        time.sleep(5)
        self.agents = [agent_of(node.pid) for node in self.nodes]

    def end(self):
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.wait()


def idle(rdzv):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        job = Job(rdzv, folder)
        before = [switches(agent) for agent in job.agents]
        time.sleep(SECONDS)
        rates = [(switches(agent) - then) / SECONDS for agent, then in zip(job.agents, before)]
        job.end()
    print(f"idle, no viewer: {', '.join(f'{rate:.1f}' for rate in rates)} wake-ups per second and agent: {rdzv}")


def read_all(viewer):
    while viewer.recv(65536):
        pass


def watched(rdzv):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        job = Job(rdzv, folder)
        viewer = socket.socket(socket.AF_UNIX)
        viewer.connect(f"{folder}/rdzv/{job.agents[0]}")
        viewer.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        threading.Thread(target=read_all, args=[viewer], daemon=True).start()
        time.sleep(3)
        before = [processor_seconds(agent) for agent in job.agents]
        time.sleep(SECONDS)
        used = [(processor_seconds(agent) - then) / SECONDS for agent, then in zip(job.agents, before)]
        job.end()
    print(f"2 nodes, page open: {', '.join(f'{100 * share:.2f} %' for share in used)} of a core per agent")


def text(value):
    return struct.pack("<H", len(value)) + value.encode()


def operation(opcode, payload):
    return struct.pack("<BQ", opcode, len(payload)) + payload


def join(number):
    """Returns the join of an agent: see coordinator/wire/mod.rs."""
    node = text(f"node-{number:04}") + struct.pack("<QQ", 1000 + number, 0)
    settings = struct.pack("<IIQQQI", NODES, NODES, 600_000, 0, 60_000, 3)
    payload = struct.pack("<BQ", 1, number + 1) + text("cost") + node + settings
    return operation(0x20, payload + text("default") + struct.pack("<I", RANKS))


def crowd(rdzv):
    """Measures a store while the agents of many nodes report."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    words = [rdzv, "store", "--host=127.0.0.1", "--port=0", "--restarts=0"]
    store = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = int(store.stdout.readline().rsplit(":", 1)[1])
    selector = selectors.DefaultSelector()
    agents = []
    for number in range(NODES):
        agent = socket.create_connection(("127.0.0.1", port))
        agent.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + join(number))
        agent.setblocking(False)
        selector.register(agent, selectors.EVENT_READ)
        agents.append(agent)
    worker = '"%d":{"output":1795904280,"processor":97,"step":1234}'
    change = '{"from":"node-0000/1000","number":7,"change":{"workers":{"#":8,' + ",".join(
        worker % rank for rank in range(RANKS)
    ) + "}}}"
    received = 0

    def drain(until):
        nonlocal received
        while (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                received += len(key.fileobj.recv(1 << 20))

    drain(time.monotonic() + 5)
    for viewed in [None, False, True]:
        used, begun = 0.0, time.monotonic()
        received = 0
        before = processor_seconds(store.pid)
        for period in range(round(SECONDS / PERIOD)):
            for number, agent in enumerate(agents):
                if viewed is None:
                    agent.sendall(operation(0x23, b""))
                elif viewed:
                    agent.sendall(operation(0x23, bytes([number == 0]) + change.encode()))
                if number % 50 == 0:
                    drain(begun + PERIOD * (period + number / NODES))
            drain(begun + PERIOD * (period + 1))
        used = (processor_seconds(store.pid) - before) / (time.monotonic() - begun)
        what = {None: "a heartbeat each", False: "nothing", True: "a report each, one viewer"}[viewed]
        print(f"{NODES} nodes of {RANKS} ranks, every {PERIOD:.2f} s {what}: {100 * used:.2f} % of a core, {received} bytes received")
    store.terminate()
    store.wait()


def main():
    programs = [os.path.abspath(program) for program in sys.argv[1:]]
    for program in programs:
        idle(program)
    watched(programs[0])
    crowd(programs[0])


main()
