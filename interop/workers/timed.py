"""Worker with a timer of PyTorch, which it releases in time or not.

Rank 0 hangs only in the first attempt with `hangs-once`, and in every attempt with `hangs`.

    timed.py (releases | hangs | hangs-once)
"""

import os
import sys
import threading

import torch.distributed.elastic.timer as timer

client = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])
timer.configure(client)
how = sys.argv[1]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if how == "releases":
    with timer.expires(after=60):
        print("working", flush=True)
else:
    hangs = os.environ["RANK"] == "0" and (how == "hangs" or attempt == 0)
    with timer.expires(after=1 if hangs else 300, scope="the slow part"):
        if hangs:
            threading.Event().wait()
print(f"done {attempt}", flush=True)
