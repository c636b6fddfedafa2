"""Rank 1 computes silently for much longer than the limit; no rank has failed."""
import os
import time

until = time.process_time() + (2.5 if os.environ["RANK"] == "1" else 0.1)
while time.process_time() < until:
    sum(range(10_000))
