"""Rank 1 acquires its own lock again; rank 0 computes 0.5 s, then blocks."""
import os
import threading
import time

if os.environ["RANK"] == "1":
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
until = time.process_time() + 0.5
while time.process_time() < until:
    sum(range(10_000))
reader, writer = os.pipe()
os.read(reader, 1)
