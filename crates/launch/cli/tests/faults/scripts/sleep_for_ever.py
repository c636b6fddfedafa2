"""Sleeps where it should work."""
import time

time.sleep(100_000)
