"""Function of a module that imports nothing but `sys`."""

import sys


def names():
    return " ".join(sys.modules)
