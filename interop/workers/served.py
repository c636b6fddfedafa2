"""Serves its control plane until the end of a pipe.

The worker writes to the first pipe when it serves, and exits at the end of the second pipe. Each worker
has a separate second pipe, whose name ends with the local rank.
"""

import os
import sys

from torch.distributed.elastic.control_plane import worker_main


@worker_main()
def main():
    with open(sys.argv[1], "w") as ready:
        ready.write("x")
    with open(sys.argv[2] + os.environ["LOCAL_RANK"]) as end:
        end.read()


main()
