"""Reads where nothing is, with Python's own fault handler on."""
import ctypes
import faulthandler

faulthandler.enable()
ctypes.string_at(8)
