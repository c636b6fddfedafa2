"""A timer signal without a handler."""
import signal

signal.setitimer(signal.ITIMER_REAL, 0.1)
signal.pause()
