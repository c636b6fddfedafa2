"""Writes the start conditions of a worker to a file in the folder DUMP."""

import json
import os
import sys

# Variables that differ in every run. The real launcher does not set the last two.
NOT_OF_THE_START = ("INTEROP_LAUNCH", "DUMP", "TMPDIR", "RDZV_ROUND", "RDZV_REPLACED")

seen = {
    "argv": sys.argv[1:],
    "environment": {k: v for k, v in os.environ.items() if k not in NOT_OF_THE_START},
    "directory": os.getcwd(),
    "leads its session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 3),
    "unbuffered": sys.flags.unbuffered if hasattr(sys.flags, "unbuffered") else None,
    "name": __name__,
}
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
path = os.path.join(os.environ["DUMP"], f"attempt {attempt} rank {rank}.json")
with open(path, "w") as file:
    json.dump(seen, file)
