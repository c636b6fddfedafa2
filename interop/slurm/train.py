"""Worker without PyTorch that reports its node, counts steps, and saves.

It saves on a signal, and ends when the test requests it. Each worker writes JSON objects, one per
line, into a separate file.
"""

import json
import os
import signal
import sys
import time

folder = os.environ["JOB"]
rank = os.environ["RANK"]
restart = os.environ.get("SLURM_RESTART_COUNT", "0")
name = f"worker-{os.environ['TORCHELASTIC_RUN_ID']}-{rank}-{os.getpid()}-{os.uname().nodename}"
report = open(f"{folder}/{name}.json", "a", buffering=1)
SAVE_SECONDS = 0.5


def say(word, **facts):
    report.write(json.dumps({"say": word, "rank": int(rank), "time": time.time(), **facts}) + "\n")


noticed = []


def notice(number, _):
    name = signal.Signals(number).name
    say("signal", name=name)
    if name in os.environ.get("SAVE_ON", "SIGTERM").split(","):
        noticed.append(name)


for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    # An ignored signal remains ignored, because the launcher was started with this setting.
    if signal.getsignal(number) == signal.SIG_IGN:
        say("ignores", name=signal.Signals(number).name)
    else:
        signal.signal(number, notice)

saved = f"{folder}/saved-{rank}"
step = int(open(saved).read()) if os.path.exists(saved) else 0
say(
    "start",
    step=step,
    host=os.uname().nodename,
    world=int(os.environ["WORLD_SIZE"]),
    local_rank=int(os.environ["LOCAL_RANK"]),
    run=os.environ["TORCHELASTIC_RUN_ID"],
    round=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    job=os.environ.get("SLURM_JOB_ID", ""),
    restart=restart,
    arguments=sys.argv[1:],
)
if "FAIL" in os.environ and os.environ["FAIL"] == rank:
    raise ValueError("boom")
# The number of steps is a limit for workers that never get a request to end.
for _ in range(30_000):
    if noticed or os.path.exists(f"{folder}/finish"):
        break
    if os.path.exists(f"{folder}/crash-{os.uname().nodename}"):
        raise ValueError("this node is broken")
    step += 1
    time.sleep(0.01)
if noticed:
    time.sleep(SAVE_SECONDS)
    with open(f"{saved}.new", "w") as file:
        file.write(str(step))
    os.replace(f"{saved}.new", saved)
    say("saved", step=step)
else:
    say("end", step=step)
