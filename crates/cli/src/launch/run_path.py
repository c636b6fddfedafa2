import faulthandler, json, os, runpy, sys, time, traceback

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
