"""The workers of a job on one node and then two, which fail together on both in every attempt with two.

Local rank 0 fails as soon as that of the other node is there. Local rank 1 ends, when it is told to, as soon as
the one of the other node has been told to as well: so each agent has seen the failure of its own workers before
it hears of the other one's. Alone, a node goes on until it is told to stop.

The folder has named pipes. Two processes meet by opening one of them for different ends: `alone` for a node that
is alone and the test, `ready-NODE-ATTEMPT` for the two workers of a node, the others for the two nodes.
"""

import os
import signal
import sys

folder, name = sys.argv[1:3]
attempt, local_rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"]


def meet(pipe: str, writes: bool) -> None:
    """Opening a pipe waits for somebody who opens its other end."""
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
