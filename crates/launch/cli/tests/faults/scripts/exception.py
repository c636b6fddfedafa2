"""Rank 1 raises; the others wait for it for ever."""
import os
import signal

def train(step):
    if os.environ["RANK"] == "1":
        raise ValueError(f"loss is NaN at step {step}")
    signal.pause()

train(17)
