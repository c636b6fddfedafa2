"""A traceback of a thousand frames."""

def deeper(depth):
    return deeper(depth + 1) + 1

deeper(0)
