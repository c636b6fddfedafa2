"""Fails in the given way, under PyTorch's recorder."""

import os
import signal
import sys
import threading

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    rank, way = int(os.environ["RANK"]), sys.argv[1]
    if rank != 0:
        threading.Event().wait()  # until the launcher stops it
    if way == "raise":
        raise ValueError("boom 0")
    if way == "exit":
        sys.exit(9)
    os.kill(os.getpid(), getattr(signal, way))


if __name__ == "__main__":
    main()
