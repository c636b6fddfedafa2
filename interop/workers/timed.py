"""Worker with a timer of PyTorch, which it releases in time or not.

With `hangs-once` it hangs only in its first attempt, with `hangs` in every attempt.

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
