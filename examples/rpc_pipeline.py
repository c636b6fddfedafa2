"""Pipeline: each worker except the first runs one stage of a model.

    rdzv run --standalone --nproc-per-node 3 examples/rpc_pipeline.py

Rank 0 sends the micro-batches to the first stage and fetches the results from the last stage. Each
later stage receives a reference to the result of the previous stage and fetches the result from
there. While the second stage processes one micro-batch, the first stage processes the next one.
"""

import threading

import numpy

import rdzv
from rdzv import rpc

WIDTH, BATCH, MICRO_BATCHES = 64, 256, 8


def layer(number: int) -> numpy.ndarray:
    """Returns the weights of a stage, which the driver also uses for its check."""
    return numpy.random.default_rng(number).normal(scale=WIDTH**-0.5, size=(WIDTH, WIDTH))


@rpc.function
class Stage:
    """Layer of the model. It processes one micro-batch at a time."""

    def __init__(self, number: int) -> None:
        self.weights = layer(number)
        self.done = 0
        self._lock = threading.Lock()

    def forward(self, values: "numpy.ndarray | rpc.RRef[numpy.ndarray]") -> numpy.ndarray:
        if isinstance(values, rpc.RRef):
            # Fetch outside the lock, because the previous stage may still be computing the value.
            values = values.to_here()
        with self._lock:
            self.done += 1
            result: numpy.ndarray = numpy.tanh(values @ self.weights)
            return result

    def count(self) -> int:
        return self.done


def drive(stages: int) -> None:
    held = [rpc.remote(f"stage-{number}", Stage, args=(number,)) for number in range(1, stages + 1)]
    batch = numpy.random.default_rng(0).normal(size=(BATCH, WIDTH))
    first, *others = held
    ends: list[rpc.RRef[numpy.ndarray]] = []
    for values in numpy.split(batch, MICRO_BATCHES):
        end: rpc.RRef[numpy.ndarray] = first.remote().forward(values)
        for stage in others:
            end = stage.remote().forward(end)
        ends.append(end)
    result = numpy.concatenate([end.to_here() for end in ends])
    expected = batch
    for number in range(1, stages + 1):
        expected = numpy.tanh(expected @ layer(number))
    assert numpy.allclose(result, expected)
    assert [stage.rpc_sync().count() for stage in held] == [MICRO_BATCHES] * stages
    print(f"{MICRO_BATCHES} micro-batches through {stages} stages")


def main() -> None:
    rank, world_size = rdzv.worker.rank(), rdzv.worker.world_size()
    if world_size == 1:
        raise SystemExit("a driver alone has no stages: start more workers")
    rpc.init_rpc(f"stage-{rank}" if rank else "driver", rank=rank, world_size=world_size)
    if rank == 0:
        drive(world_size - 1)
    rpc.shutdown()


if __name__ == "__main__":
    main()
