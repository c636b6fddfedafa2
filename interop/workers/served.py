"""Serves its control plane: says so in the first pipe, and ends with what the second one says.

The second pipe is one per worker: the local rank is added to the name.
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
