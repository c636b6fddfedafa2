import faulthandler
import fcntl
import json
import os
import runpy
import sys
import time
import traceback

def record(error):
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    trace = error.__traceback__
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename != sys.argv[0]:
        inner = inner.tb_next
    stack = "".join(traceback.format_exception(type(error), error, inner or trace))
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))},
    }
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError as reason:
        print(f"cannot write the error file {path}: {reason}", file=sys.stderr)

def mark(rank):
    directory = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
    return os.path.join(os.path.dirname(directory), rank or os.path.basename(directory), ".running")

def begin():
    if not os.environ.get("TORCHELASTIC_ERROR_FILE") or os.environ.get("LOCAL_WORLD_SIZE") == "1":
        return None  # There is no other worker, or no directory for the mark.
    # The mark is locked before it gets its name. The lock ends with the process, for any reason.
    mine = mark(None)
    file = open(mine + ".new", "w")
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.rename(mine + ".new", mine)
    return file

def stay(running):
    # A worker that has returned waits until all workers of the node have returned or exited,
    # because other workers may still use a process group that this script left open.
    running.close()
    begun = time.monotonic() + 60
    for rank in range(int(os.environ["LOCAL_WORLD_SIZE"])):
        while not os.path.exists(mark(str(rank))):
            if time.monotonic() > begun:
                raise OSError(f"local rank {rank} does not begin")
            time.sleep(0.01)  # Its interpreter is still starting.
        with open(mark(str(rank))) as file:
            fcntl.lockf(file, fcntl.LOCK_SH)

running = None
try:
    running = begin()
except OSError as reason:
    print(f"this worker will wait for no other one: {reason}", file=sys.stderr)
try:
    faulthandler.enable(all_threads=True)
except Exception:
    pass
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as error:
    record(error)
    raise
if running:
    try:
        stay(running)
    except OSError as reason:
        print(f"cannot wait for the other workers of this node: {reason}", file=sys.stderr)
