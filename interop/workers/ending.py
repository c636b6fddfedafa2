"""How a worker with a process group ends: with the status that it means, and no other.

PyTorch 2.15 aborts a process whose interpreter ends while a thread of gloo still holds the tensor of a
collective: the thread wants the interpreter's lock to let go of it. `destroy_process_group` ends these
threads, but not those of a group that DDP has used, and nobody calls it who fails. So nothing of the
interpreter's end is done but what tests rest on.
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
    # As the interpreter does.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
