"""End of a worker with a process group, with its correct exit status.

PyTorch 2.15 aborts a process if the interpreter shuts down while a thread of gloo still holds the
tensor of a collective. The thread needs the interpreter lock to release the tensor.
`destroy_process_group` ends these threads, but not those of a group that DDP has used, and a failing
worker does not call it. So this module skips the shutdown, except for the steps that tests need.
"""

import os
import sys
import threading


def ends_at_once(main) -> None:
    """Runs `main` and ends the process: 0, or 1 and a traceback."""
    status = 0
    try:
        main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    # The interpreter does the same at its shutdown.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
