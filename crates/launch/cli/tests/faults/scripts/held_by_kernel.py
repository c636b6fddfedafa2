"""Stays in state D: the vfork child neither ends nor executes a program."""
import ctypes

libc = ctypes.PyDLL(None)
if libc.vfork() == 0:
    libc.pause()
