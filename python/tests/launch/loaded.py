"""Module with one function that imports only `sys`."""

import sys


def names():
    return " ".join(sys.modules)
