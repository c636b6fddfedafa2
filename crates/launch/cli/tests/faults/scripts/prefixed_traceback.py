"""A traceback with the prefix that PyTorch gives to all lines of it."""
import os
import sys
import traceback

def hook(kind, value, trace):
    for line in "".join(traceback.format_exception(kind, value, trace)).splitlines():
        print(f"[rank{os.environ['RANK']}]: {line}", file=sys.stderr)

sys.excepthook = hook
raise RuntimeError("NCCL communicator was aborted on rank 0")
