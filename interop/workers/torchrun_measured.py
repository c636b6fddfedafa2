"""torchrun with its metrics on the console, which takes a program: there is no flag for it."""

from torch.distributed.elastic import metrics
from torch.distributed.run import main

metrics.configure(metrics.ConsoleMetricHandler())
main()
