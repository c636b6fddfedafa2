"""Parameter server: trainers with parts of the data fit one line to it.

    rdzv run --standalone --nproc-per-node 4 examples/rpc_parameter_server.py

Rank 0 holds the weights. In every step, each trainer pushes its gradient and receives the weights
that result from all gradients of the step. The called function returns a future, so a call that
waits for the other trainers occupies no thread, regardless of their number. Arrays are sent out of
band, so they are not copied into the pickle.
"""

import threading

import numpy

import rdzv
from rdzv import rpc

SERVER, STEPS, POINTS, RATE = "server", 100, 100, 0.5
TRUE = numpy.array([3.0, -2.0])


class Server:
    """Holds the weights, and the gradients of the current step."""

    def __init__(self, trainers: int) -> None:
        self.trainers = trainers
        self.weights = numpy.zeros(2)
        self.steps = 0
        self._lock = threading.Lock()
        self._gradients: list[numpy.ndarray] = []
        self._next: rpc.Future[numpy.ndarray] = rpc.Future()

    def push(self, gradient: numpy.ndarray) -> "rpc.Future[numpy.ndarray]":
        with self._lock:
            # The memory of the array belongs to the call and is freed when the call completes.
            self._gradients.append(gradient.copy())
            step = self._next
            if len(self._gradients) < self.trainers:
                return step
            self.weights = self.weights - RATE * numpy.mean(self._gradients, axis=0)
            self.steps += 1
            self._gradients, self._next = [], rpc.Future()
        step.set_result(self.weights)
        return step


server: "Server | None" = None


@rpc.function
@rpc.functions.async_execution
def push(gradient: numpy.ndarray) -> "rpc.Future[numpy.ndarray]":
    """Adds the gradient of a trainer and returns the weights after the step."""
    assert server is not None
    return server.push(gradient)


def train(rank: int, trainers: int) -> numpy.ndarray:
    places = numpy.linspace(-1, 1, POINTS)[rank - 1 :: trainers]
    inputs = numpy.stack([places, numpy.ones_like(places)], axis=1)
    targets = inputs @ TRUE
    weights = numpy.zeros(2)
    for _ in range(STEPS):
        gradient = inputs.T @ (inputs @ weights - targets) / len(places)
        weights = rpc.rpc_sync(SERVER, push, args=(gradient,))
    return weights


def main() -> None:
    global server
    rank, world_size = rdzv.worker.rank(), rdzv.worker.world_size()
    trainers = world_size - 1
    if not trainers:
        raise SystemExit("a server alone has nothing to do: start more workers")
    # Create the server before other workers can call it.
    server = Server(trainers) if rank == 0 else None
    name = SERVER if rank == 0 else f"trainer-{rank}"
    rpc.init_rpc(name, rank=rank, world_size=world_size)
    if rank > 0:
        slope, height = train(rank, trainers)
        assert numpy.allclose((slope, height), TRUE, atol=1e-3), (slope, height)
        print(f"{name}: slope {slope:.3f}, height {height:.3f}")
    # All workers wait for each other here, so the server runs until the last trainer is done.
    rpc.shutdown()
    if server is not None:
        assert server.steps == STEPS
        print(f"{name}: {STEPS} steps of {trainers} trainers")


if __name__ == "__main__":
    main()
