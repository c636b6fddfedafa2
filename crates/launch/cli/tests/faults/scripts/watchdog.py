"""Sets a timer of 0.3 s, as PyTorch's file-based timer does, and is too late."""
import json
import os
import signal
import time

if os.environ["RANK"] == "1":
    line = {
        "version": 1,
        "pid": os.getpid(),
        "scope_id": "train.py#17",
        "expiration_time": time.time() + 0.3,
        "signal": 9,
    }
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as pipe:
        pipe.write(json.dumps(line) + "\n")
signal.pause()
