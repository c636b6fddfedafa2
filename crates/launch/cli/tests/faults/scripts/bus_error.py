"""Reads a mapped file behind its end: another process has made it shorter."""
import mmap
import tempfile

with tempfile.TemporaryFile() as file:
    file.truncate(8192)
    view = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    print(view[4096])
