"""Tests of a DDP job whose nodes are killed and rejoin."""

import os

from elastic import Job
from launching import worker

# Ten in a row have succeeded. Two are enough to detect a broken change.
TIMES = int(os.environ.get("ELASTIC_DDP_TIMES", "2"))


def test_the_others_train_on_without_a_killed_node_and_take_it_back(tmp_path):
    """The remaining workers fail because of the lost connection.

    This failure is not charged to `--max-restarts`, which is 0 here."""
    options = "last_call_timeout=20"
    with Job(tmp_path, "1:3", None, options, worker("ddp_report_world.py"), restarts=0) as job:
        job.start("rdzv", "host", "127.0.0.1", "is_host=1")
        job.start("rdzv", "stays", "127.0.0.2", "is_host=0")
        job.start("rdzv", "goes-0", "127.0.0.3", "is_host=0")
        for time in range(TIMES):
            job.await_world(3, "host", "stays", f"goes-{time}")
            job.kill(f"goes-{time}")
            job.await_world(2, "host", "stays")
            job.start("rdzv", f"goes-{time + 1}", "127.0.0.3", "is_host=0")
        job.await_world(3, "host", "stays", f"goes-{TIMES}")
        (tmp_path / "finished").touch()
        job.finish()
