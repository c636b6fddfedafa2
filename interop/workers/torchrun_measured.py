"""Runs torchrun with its metrics on the console, for which it has no flag."""

from torch.distributed.elastic import metrics
from torch.distributed.run import main

metrics.configure(metrics.ConsoleMetricHandler())
main()
