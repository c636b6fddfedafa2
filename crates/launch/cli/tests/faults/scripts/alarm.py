"""A timer that nobody handles."""
import signal

signal.setitimer(signal.ITIMER_REAL, 0.1)
signal.pause()
