"""``python -m rdzv``: the native launcher, whose workers run this interpreter."""

import os
import sys

from rdzv._program import find_rdzv_bin

program = find_rdzv_bin()
environment = dict(os.environ)
environment.setdefault("PYTHON_EXEC", sys.executable)
os.execve(program, [program, *sys.argv[1:]], environment)
