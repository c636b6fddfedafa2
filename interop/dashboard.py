"""Dashboard for torchrun, which counts torchelastic's events and metrics.

It does not know rdzv. Its events are the lines of `--event-log-handler console`, parsed by PyTorch's
class. Its metrics are the lines of PyTorch's `ConsoleMetricHandler`.
"""

import re
from collections import Counter, defaultdict

from torch.distributed.elastic.events import Event

POINT = re.compile(r"^\[(\d+\.\d+)\]\[(\w+)\]: ([\w.]+)=(-?\d+)$", re.MULTILINE)


class Dashboard:
    def __init__(self, output: str):
        """Parses the complete output of an agent."""
        self.events: Counter[str] = Counter()
        for line in output.splitlines():
            if line.startswith(('{"name": "torchelastic.', '{"name":"torchelastic.')):
                event = Event.deserialize(line)
                self.events[f"{event.source.name} {event.metadata['state']}"] += 1
        self.values: dict[str, list[int]] = defaultdict(list)
        for _, group, name, value in POINT.findall(output):
            assert group == "torchelastic", name
            self.values[name].append(int(value))

    def metrics(self) -> dict[str, int]:
        """Returns the number of points of each metric."""
        return {name: len(values) for name, values in sorted(self.values.items())}

    def levels(self, name: str) -> list[int]:
        """Returns the values of a gauge, without equal consecutive values."""
        values = self.values[name]
        return [value for value, last in zip(values, [None, *values]) if value != last]
