"""Node of rdzv in a rendezvous, through the program `member`."""

import queue
import subprocess
import threading
import time

from launching import MEMBER, environment

TIMEOUT = 60


class OurNode:
    """Process of a node, with asynchronous commands, and a queue of changes."""

    CHANGES = ("membership ", "peer-failed ", "closed-by-other", "lost ")

    def __init__(self, backend, endpoint, run_id, nodes, config, address):
        words = [backend, endpoint, run_id, nodes, config, address]
        self.process = subprocess.Popen(
            [MEMBER, *words],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answers = queue.Queue()
        self.changes = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            (self.changes if line.startswith(self.CHANGES) else self.answers).put(line)

    def begin(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def collect(self):
        return self.answers.get(timeout=TIMEOUT)

    def call(self, command):
        self.begin(command)
        return self.collect()

    def joined(self):
        """Waits for a join. Returns round, rank, world size, master address and port."""
        answer = self.collect()
        words = answer.split()
        assert words[0] == "joined", answer
        return int(words[1]), int(words[2]), int(words[3]), words[4], int(words[5])

    def hears(self, beginning):
        """Waits for a change whose text has this beginning."""
        end = time.monotonic() + TIMEOUT
        while True:
            change = self.changes.get(timeout=max(0.1, end - time.monotonic()))
            if change.startswith(beginning):
                return change

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        self.reader.join(15)
        self.process.stdout.close()
