"""``python -m rdzv``: runs the native launcher.

The workers run with this interpreter, unless ``PYTHON_EXEC`` is set.
"""

import os
import sys

from rdzv._program import find_rdzv_bin

program = find_rdzv_bin()
environment = dict(os.environ)
environment.setdefault("PYTHON_EXEC", sys.executable)
os.execve(program, [program, *sys.argv[1:]], environment)
