"""A dashboard as somebody may have written it for torchrun: it counts torchelastic's events and metrics.

It knows nothing of rdzv. Events are the lines of `--event-log-handler console`, read by PyTorch's own class,
metrics those of PyTorch's `ConsoleMetricHandler`.
"""

import re
from collections import Counter, defaultdict

from torch.distributed.elastic.events import Event

POINT = re.compile(r"^\[(\d+\.\d+)\]\[(\w+)\]: ([\w.]+)=(-?\d+)$", re.MULTILINE)


class Dashboard:
    def __init__(self, output: str):
        """From everything that an agent has written."""
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
        """How many points each metric has."""
        return {name: len(values) for name, values in sorted(self.values.items())}

    def levels(self, name: str) -> list[int]:
        """The values of a gauge, each until it changes."""
        values = self.values[name]
        return [value for value, last in zip(values, [None, *values]) if value != last]
