"""Rank 1 allocates memory until the kernel acts; the other ranks use little."""
import os
import resource
import signal

# Without a limit, the loop must not take all memory of the machine.
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
held = []
while os.environ["RANK"] == "1":
    held.append(b"x" * (1 << 20))
signal.pause()
