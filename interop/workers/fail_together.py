"""Workers that fail together on both nodes of a job.

The job has one node first and two nodes later, and fails in every attempt with two nodes. Local rank 0
fails as soon as local rank 0 of the other node is ready. Local rank 1 exits on SIGTERM, as soon as
local rank 1 of the other node has received SIGTERM too. So each agent has detected the failure of its
workers before it receives the failure of the other agent. A node that is alone runs until it is stopped.

The folder has named pipes. Two processes synchronize when they open the two ends of a pipe. The pipe
`alone` is for a single node and the test, `ready-NODE-ATTEMPT` is for the two workers of a node, and the
other pipes are for the two nodes.
"""

import os
import signal
import sys

folder, name = sys.argv[1:3]
attempt, local_rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"]


def meet(pipe: str, writes: bool) -> None:
    """Opens a pipe, which waits until another process opens its other end."""
    os.close(os.open(os.path.join(folder, pipe), os.O_WRONLY if writes else os.O_RDONLY))


def on_sigterm(number, frame) -> None:
    meet(f"ending-{attempt}", name == "a")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if os.environ["GROUP_WORLD_SIZE"] == "1":
    if local_rank == "0":
        meet("alone", True)
elif local_rank == "0":
    meet(f"ready-{name}-{attempt}", False)
    meet(f"failing-{attempt}", name == "a")
    sys.exit(3)
else:
    signal.signal(signal.SIGTERM, on_sigterm)
    meet(f"ready-{name}-{attempt}", True)
signal.pause()
