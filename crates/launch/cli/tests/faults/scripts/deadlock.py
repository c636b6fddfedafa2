"""Rank 1 takes a lock that it holds; rank 0 works on for a while, and then waits for rank 1."""
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
