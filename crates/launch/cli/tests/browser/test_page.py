"""The page of a running job, and the timeline of a past one, in a browser.

`cargo xtask test --browser` builds `rdzv`, sets RDZV_BINARY, and runs these tests. The screenshots are
in `target/browser`.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from chromium import Chromium

RDZV = os.environ["RDZV_BINARY"]
PICTURES = Path(os.environ.get("RDZV_PICTURES", "target/browser"))
LIMIT_SECONDS = 60

# A text of a worker that would open a dialog and load a picture if it became HTML.
HOSTILE = "</pre></script><img src=http://127.0.0.1:1/x onerror=alert(1)><b onmouseover=alert(2)>"

WORKER = """
i=0
while [ ! -e end ]; do
  i=$((i + 1)); echo "step $i $HOSTILE"; echo "step $i" > "$RDZV_HEARTBEAT"
  [ $RANK = 3 ] && sleep 0.2
  if [ -e fail$RANK ]; then rm fail$RANK; echo "ValueError: $HOSTILE" >&2; exit 3; fi
  sleep 0.1
done
"""


class Job:
    """Two nodes of two ranks each on this machine."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "run").mkdir(mode=0o700)
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        self.environment = os.environ | {
            "XDG_RUNTIME_DIR": str(folder / "run"), "LOGLEVEL": "INFO", "HOSTILE": HOSTILE,
        }  # fmt: skip
        self.nodes = []
        for node in range(2):
            flags = f"--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port}"
            flags += f" --rdzv-id=llama --max-restarts=2 --redirects=3 --log-dir=logs{node} --status-addr=0"
            flags += f" --events-file=events{node}.jsonl --shutdown-timeout=5 --stragglers=2"
            words = [RDZV, "run", *flags.split(), "--no-python", "bash", "-c", WORKER]
            log = open(folder / f"log{node}", "w")
            self.nodes.append(
                subprocess.Popen(words, cwd=folder, env=self.environment, stdout=log, stderr=log)
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.terminate()
            node.wait(LIMIT_SECONDS)

    def url(self, node=0):
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            for line in (self.folder / f"log{node}").read_text().splitlines():
                if "status at http://" in line:
                    return line.split("status at ")[1].strip()
            time.sleep(0.05)
        pytest.fail("no status page")

    def status(self, node=0):
        with urllib.request.urlopen(self.url(node) + "status") as answer:
            return json.load(answer)


@pytest.fixture
def browser():
    with Chromium() as browser:
        yield browser


def pictures(page, name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width in [390, 900, 1600]:
        for dark in [False, True]:
            page.form(width, 1000, dark)
            page.wait(f"innerWidth === {width}")
            # The page draws itself again after a change of its size.
            page.wait("new Promise(done => setTimeout(() => done(true), 500))")
            page.screenshot(PICTURES / f"{name}-{width}-{'dark' if dark else 'light'}.png")
            assert page.value("document.documentElement.scrollWidth") <= width


def test_a_job_with_a_killed_worker_a_restart_and_a_verdict(tmp_path, browser):
    with Job(tmp_path) as job:
        url = job.url()
        page = browser.open(url)
        page.wait("document.querySelectorAll('.cell.healthy').length === 4")
        assert page.value("document.getElementById('job').textContent") == "llama"
        page.wait("document.getElementById('state').textContent === 'running'")
        page.wait("document.querySelectorAll('#steps canvas, #memory canvas').length === 2")
        # The ranks of both nodes answer through one agent.
        for rank in [0, 3]:
            page.value(f"[...document.querySelectorAll('.cell')][{rank}].click()")
            page.wait(f"document.getElementById('who').textContent === 'Rank {rank}'")
            page.wait("document.getElementById('text').textContent.includes('onmouseover=alert(2)')")
        page.value("document.getElementById('show-stack').click()")
        page.wait("document.getElementById('text').textContent.includes('asleep')")
        page.wait("document.getElementById('alerts').textContent.includes('rank 3')")
        pictures(page, "running")

        worker = job.status()["workers"][1]
        os.kill(worker["pid"], signal.SIGKILL)
        page.wait("document.getElementById('alerts').textContent.includes('rank 1 on')")
        page.wait("document.getElementById('facts').textContent.includes('1/2')")
        page.wait("document.getElementById('timeline').textContent.includes('round 1, 2 nodes')")
        page.wait("document.querySelectorAll('.cell.healthy').length === 4")
        page.wait("document.getElementById('restarts').textContent.includes('failure')")
        page.wait("/[0-9] %/.test(document.getElementById('nodes').textContent)")
        pictures(page, "restarted")

        for _ in range(2):
            (tmp_path / "fail1").touch()
            end = time.monotonic() + LIMIT_SECONDS
            while (tmp_path / "fail1").exists() and time.monotonic() < end:
                time.sleep(0.05)
        page.wait("document.getElementById('state').textContent === 'failed'")
        page.wait("document.getElementById('alerts').textContent.includes('ValueError')")
        page.wait("document.getElementById('link').textContent === 'the run has ended'")
        pictures(page, "failed")

        assert page.value("document.querySelectorAll('img, iframe, [onmouseover], [onerror]').length") == 0
        outside = [it for it in browser.requests if not it.startswith((url, "about:"))]
        assert outside == []
        # After its end, the agent refuses connections.
        assert [it for it in browser.errors if "ERR_" not in str(it)] == []
    with Chromium() as browser:
        timeline(tmp_path, browser)


def timeline(folder, browser):
    files = [str(folder / f"events{node}.jsonl") for node in range(2)]
    subprocess.run([RDZV, "timeline", *files, "-o", str(folder / "run.html")], check=True)
    page = browser.open(f"file://{folder}/run.html")
    page.wait("document.getElementById('timeline').textContent.includes('round 1, 2 nodes')")
    assert page.value("document.querySelectorAll('.s-bad').length") > 0
    pictures(page, "timeline")
    assert page.value("document.querySelectorAll('img, [onmouseover], [onerror]').length") == 0
    assert browser.requests == [f"file://{folder}/run.html"]
    assert browser.errors == []


def test_the_page_of_a_viewer_needs_its_key(tmp_path, browser):
    with Job(tmp_path) as job:
        job.url()
        words = [RDZV, "top", "llama", "--web"]
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            if subprocess.run([RDZV, "ps"], env=job.environment, capture_output=True).stdout.count(b"healthy"):
                break
        viewer = subprocess.Popen(words, env=job.environment, stdout=subprocess.PIPE, text=True)
        try:
            url = viewer.stdout.readline().strip()
            page = browser.open(url)
            page.wait("document.querySelectorAll('.cell.healthy').length === 4")
            page.wait("document.getElementById('link').textContent === 'live'")
            without = url.rsplit("/", 2)[0] + "/"
            for path in ["", "events", "status"]:
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(without + path)
                assert refused.value.code == 404
            assert browser.errors == []
        finally:
            viewer.terminate()
            viewer.wait(LIMIT_SECONDS)
