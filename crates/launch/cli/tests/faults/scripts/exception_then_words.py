"""An exit handler writes more after the traceback than anybody wants to read."""
import atexit
import sys

@atexit.register
def bye():
    for step in range(60):
        print(f"flushing metrics of step {step}", file=sys.stderr)

raise ArithmeticError("gradient norm is infinite")
