"""Rank 1 raises; the other ranks wait for it without a limit."""
import os
import signal

def train(step):
    if os.environ["RANK"] == "1":
        raise ValueError(f"loss is NaN at step {step}")
    signal.pause()

train(17)
