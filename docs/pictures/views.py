# /// script
# requires-python = ">=3.11"
# dependencies = ["pyte==0.8.2"]
# ///
"""Draws `rdzv top` and the page of a job: `uv run docs/pictures/views.py RDZV`, with Chromium in PATH.

RDZV is the path of the launcher. The script starts a job of four nodes on this machine, kills a
worker, and writes `top.svg` and `page.png` beside itself. As root, the nodes have separate names.
"""

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "crates/launch/cli/tests/browser")]

import terminal  # noqa: E402  (after its folder is in the path)
from chromium import Chromium  # noqa: E402

NODES = 4

WORKER = """
import os, sys, time

rank = int(os.environ["RANK"])
ballast = bytearray((60 + rank * 3 % 17) << 20)
for step in range(10_000):
    print(f"step {step} loss {2.3 / (1 + step / 90):.3f}", flush=True)
    if os.path.exists(f"fail{rank}"):
        os.remove(f"fail{rank}")
        raise ValueError("loss is NaN")
    time.sleep(0.12 if step > 5 else 0.02)
    ballast[:1024] = os.urandom(1024)
"""


def start(launcher, folder):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    flags = f"--nnodes={NODES} --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port}"
    flags += " --rdzv-id=llama --max-restarts=3 --redirects=3 --shutdown-timeout=2"
    for node in range(NODES):
        words = [launcher, "run", *flags.split(), f"--log-dir=logs{node}", "train.py"]
        if os.geteuid() == 0:
            words = ["unshare", "-u", "sh", "-c", f'hostname node-{node}; exec "$@"', "sh", *words]
        quiet = subprocess.DEVNULL
        yield subprocess.Popen(words, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet)


def top(launcher, seconds):
    """Returns the screen of `rdzv top` after some seconds."""
    keys = b"\r"
    screen = pyte.Screen(terminal.COLUMNS, terminal.ROWS)
    stream = pyte.ByteStream(screen)
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", terminal.ROWS, terminal.COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    shown = subprocess.Popen(
        [launcher, "top"], stdin=far, stdout=far, stderr=far, env=environment, start_new_session=True
    )
    os.close(far)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if left < seconds / 2:
            # Shows the ranks of the first node.
            os.write(near, keys)
            keys = b""
        if select.select([near], [], [], 0.1)[0]:
            stream.feed(os.read(near, 65536))
    shown.send_signal(signal.SIGKILL)
    shown.wait()
    os.close(near)
    return screen


def main():
    launcher = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        Path(folder, "train.py").write_text(WORKER)
        nodes = list(start(launcher, folder))
        try:
            until = time.monotonic() + 60
            while b"healthy" not in subprocess.run([launcher, "ps"], capture_output=True).stdout:
                assert time.monotonic() < until, "the job did not start"
            web = subprocess.Popen([launcher, "top", "--web"], stdout=subprocess.PIPE, text=True)
            with Chromium() as browser:
                page = browser.open(web.stdout.readline().strip())
                page.form(1200, 900, False)
                page.wait("document.querySelectorAll('.cell.healthy').length === 16")
                time.sleep(9)
                Path(folder, "fail9").touch()
                page.wait("document.getElementById('alerts').textContent.includes('loss is NaN')")
                page.wait("document.querySelectorAll('.cell.healthy').length === 16")
                time.sleep(7)
                page.value("document.getElementById('timeline').scrollIntoView(); scrollTo(0, 0)")
                page.screenshot(HERE / "page.png", whole=False)
            screen = top(launcher, 4)
            (HERE / "top.svg").write_text(terminal.svg("rdzv top", screen))
            web.terminate()
            web.wait()
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait()


main()
