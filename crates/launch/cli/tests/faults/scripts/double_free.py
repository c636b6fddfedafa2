"""Frees the same memory twice; the C library notices and aborts."""
import ctypes

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
block = libc.malloc(64)
libc.free(block)
libc.free(block)
