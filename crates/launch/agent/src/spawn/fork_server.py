# Fork server of `rdzv run --preload`: imports modules once, and forks a process for each worker.
#
# The agent passes this text to the workers' interpreter as `-c`. There it packs itself as the
# module `sitecustomize` into a zip file in memory, and executes the interpreter again, with the
# command line of a worker. The interpreter then imports this text before its script. In the process
# of a worker, this text returns, and the interpreter does the rest: `sys.path[0]`, `__main__`, the
# script, the exit. In all other processes it must not return: the interpreter would run the script.
import contextlib
import ctypes
import gc
import io
import os
import select
import socket
import sys
import warnings

# Files that a process has open if it has initialised a GPU, which does not survive a fork.
GPUS = "/dev/nvidia", "/dev/kfd", "/dev/dxg", "/dev/dri/render"
PR_SET_PDEATHSIG, PR_SET_PTRACER, SIGKILL = 1, 0x59616D61, 9


def execute_again():
    import zipfile

    # A wrapper around the interpreter may have added flags.
    at = sys.orig_argv.index("-c")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise RuntimeError(f"the interpreter has the flags {' '.join(sys.orig_argv[1:at])}")
    file = os.memfd_create("rdzv-preload", 0)
    with open(file, "w+b", closefd=False) as archive, zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("sitecustomize.py", sys.orig_argv[at + 1])
    paths = f"/proc/self/fd/{file}", os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = ":".join(filter(None, paths))
    os.execv(sys.executable, sys.orig_argv[:at] + sys.orig_argv[at + 2 :])


def import_modules(names):
    archive = os.path.dirname(__file__)
    sys.path.remove(archive)
    # `importlib.invalidate_caches` would read the next file with this number.
    sys.path_importer_cache.pop(archive, None)
    os.close(int(os.path.basename(archive)))
    paths = os.environ.pop("PYTHONPATH").partition(":")[2]
    if paths:
        os.environ["PYTHONPATH"] = paths
    # The environment may have a module with this name.
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    # The interpreter will add the folder of the script.
    script = sys.argv[1] if sys.argv[0] == "-c" else sys.argv[0]
    folder = script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))
    sys.path.insert(0, os.getcwd() if script == "-m" else folder)
    for name in names:
        __import__(name)
    del sys.path[0]


def check_forks():
    # Some libraries (OpenBLAS) end their threads before a fork. A worker would lack all others.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"{threads} threads run after the imports")
    for number in os.listdir("/proc/self/fd"):
        path = os.path.realpath(f"/proc/self/fd/{number}")
        if path.startswith(GPUS):
            raise RuntimeError(f"the imports have initialised a GPU ({path} is open)")
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise RuntimeError("the imports have started a process")


def serve(count):
    # Forks workers in advance; returns in the process of a worker that has received a request.
    while True:
        for _ in range(count):
            if os.fork() == 0:
                return await_request()
        for _ in range(count):
            os.waitpid(-1, 0)
        # All have requests. The workers start faster if the next forks come later.
        if select.select([channel], [], [], 1)[0] and not channel.recv(1, socket.MSG_PEEK):
            os._exit(0)


def follow(parent):
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # It had exited before the signal was set.


def await_request():
    follow(server)
    middle = os.getpid()
    waits, taken = os.pipe()
    if os.fork():
        # When the pipe is closed, this process exits, and the worker becomes a child of the agent.
        # As another program, this process has little memory to free, and exits sooner.
        os.dup2(waits, 0)
        with contextlib.suppress(OSError):
            os.execv("/bin/sh", ["sh", "-c", "read _"])
        os.close(taken)
        os.read(waits, 1)
        os._exit(0)
    follow(middle)
    os.close(waits)
    exited = os.pidfd_open(middle)
    message, descriptors, _, _ = socket.recv_fds(channel, 1, 8, socket.MSG_CMSG_CLOEXEC)
    if not message:
        os._exit(0)  # The agent has closed the channel or exited.
    prctl(PR_SET_PDEATHSIG, 0)
    os.close(taken)
    select.select([exited], [], [])
    os.close(exited)
    channel.close()
    return descriptors


def become_worker(descriptors, said):
    request, answer, stdin, stdout, stderr, *group = descriptors
    content = os.pread(request, os.fstat(request).st_size, 0).split(b"\0")
    agent, traceable, count = map(int, content[:3])
    follow(agent)
    os.setsid()
    if traceable:
        prctl(PR_SET_PTRACER, agent)
    if content[3]:
        os.sched_setaffinity(0, map(int, content[3].split(b",")))
    # An argument may contain the local rank.
    arguments = [os.fsdecode(argument) for argument in content[4 : 4 + count]]
    sys.orig_argv[len(sys.orig_argv) - count :] = arguments
    sys.argv[1:] = arguments[count + 1 - len(sys.argv) :]
    for variable in content[4 + count : -1]:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    streams = (stdin, sys.stdin), (stdout, sys.stdout), (stderr, sys.stderr)
    for number, (descriptor, stream) in enumerate(streams):
        os.dup2(descriptor, number)
        # A stream remembers whether its file has positions.
        kind, former = type(stream.buffer), getattr(stream.buffer, "raw", stream.buffer)
        raw = io.FileIO(number, former.mode, closefd=False)
        raw.name = former.name
        how = stream.encoding, stream.errors, "\n", stream.line_buffering, stream.write_through
        stream.__init__(raw if kind is io.FileIO else kind(raw), *how)
    # The module `random` has done this at the fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._set_native_id()
    # Without this answer, the agent executes the program, and closes its end of the socket.
    os.write(answer, b"%d" % os.getpid())
    if not os.read(answer, 1):
        os._exit(1)
    # If the kernel refuses the control group, the worker stays outside.
    with contextlib.suppress(OSError):
        for directory in group:
            entrance = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
            descriptors.append(entrance)
            os.write(entrance, b"0")
    for descriptor in descriptors:
        os.close(descriptor)
    # The output may have no reader.
    with contextlib.suppress(OSError):
        for number, text in enumerate(said, 1):
            while text:
                text = text[os.write(number, text) :]


def fork_workers():
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    count, *modules = channel.recv(1 << 16).decode().split(",")
    import_modules(modules)
    check_forks()
    sys.stdout.flush()
    # Each worker prints the output of its imports.
    said = [os.pread(number, os.fstat(number).st_size, 0) for number in (1, 2)]
    gc.collect()
    gc.freeze()  # A collection would write to the memory that the workers share.
    channel.send(b"+")
    become_worker(serve(int(count)), said)


server, is_worker = os.getpid(), False
prctl = ctypes.CDLL(None).prctl
channel = socket.socket(fileno=os.dup(0))
try:
    if __name__ == "__main__":
        execute_again()
    fork_workers()
    is_worker = True
except BaseException as error:
    if os.getpid() == server:
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        channel.send(f"{kind}{error}".encode()[:4096])
finally:
    if not is_worker:
        os._exit(1)
if "sitecustomize" not in sys.modules:
    raise ImportError(name="sitecustomize")
