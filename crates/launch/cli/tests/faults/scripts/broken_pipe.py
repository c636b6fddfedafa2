"""Writes into a pipe without a reader, with the signal's default action."""
import os
import signal

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.close(reader)
os.write(writer, b"x")
