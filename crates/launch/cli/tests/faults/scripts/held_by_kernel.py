"""The parent of a vfork child that neither ends nor becomes another program is in state D."""
import ctypes

libc = ctypes.PyDLL(None)
if libc.vfork() == 0:
    libc.pause()
