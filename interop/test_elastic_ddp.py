"""A DDP job whose nodes die without a word and come back."""

import os

from elastic import Job
from launching import worker

# Ten in a row have been seen; two are enough to see a change of ours break it.
TIMES = int(os.environ.get("ELASTIC_DDP_TIMES", "2"))


def test_the_others_train_on_without_a_killed_node_and_take_it_back(tmp_path):
    """Their workers fail with the lost connection; that is not their failure, so it costs none of
    the restarts, of which there are none."""
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
