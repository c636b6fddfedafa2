"""Runs the real launcher many times, with only one import.

Reads a JSON list of rows (`arguments`, `environment`) on stdin, and runs each row in a fork. Prints
a JSON list of `[exit code, stderr]`.
"""

import json
import os
import sys
import tempfile
import traceback

from torch.distributed.run import main


def run(row) -> None:
    os.environ.update(row["environment"])
    sys.argv = ["torchrun", *row["arguments"]]
    try:
        main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


answers = []
for row in json.load(sys.stdin):
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(stderr.fileno(), 2)
            run(row)
        status = os.waitpid(child, 0)[1]
        stderr.seek(0)
        answers.append([os.waitstatus_to_exitcode(status), stderr.read().decode()])
json.dump(answers, sys.stdout)
