"""A process of its pool is killed."""
import concurrent.futures
import os
import signal

def work(item):
    os.kill(os.getpid(), signal.SIGKILL)

with concurrent.futures.ProcessPoolExecutor(1) as pool:
    pool.submit(work, 1).result()
