"""Models over three workers, and their gradients.

``python gradients.py BACKEND`` runs each model on workers that speak by the backend, or in one process if it is ``local``,
and prints one JSON object: model -> gradients. What a model computes is the same in all cases.
"""

import json
import sys
import tempfile
import threading

import rdzv.torch.rpc  # noqa: F401, I001, before any RRef is imported

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import optim
from torch.distributed.optim import DistributedOptimizer

NAMES = ("w0", "w1", "w2")
WEIGHTS = {
    name: torch.nn.Parameter(torch.linspace(-0.5, 0.6 + 0.1 * at, 9).view(3, 3)) for at, name in enumerate(NAMES)
}
IS_LOCAL = sys.argv[1:] == ["local"]


def call(to, function, *args):
    return function(*args) if IS_LOCAL else rpc.rpc_sync(to, function, args=args)


def call_by_reference(to, function, *args):
    return function(*args) if IS_LOCAL else rpc.remote(to, function, args=args).to_here()


def after(name, steps=1):
    return NAMES[(NAMES.index(name) + steps) % 3]


def inputs():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(2, 3, generator=generator).requires_grad_() for _ in range(2)]


def layer(me, x):
    return torch.tanh(x @ WEIGHTS[me])


# Models
# --------------------------------------------------------------------------------------------------


def relay(me, x, depth):
    """Each worker calls the next one, and adds the argument to the result."""
    y = layer(me, x)
    return y + call(after(me), relay, after(me), y, depth - 1) if depth else y


def nested(x, y):
    return (call("w1", relay, "w1", x, 7) * call_by_reference("w2", relay, "w2", y, 5)).sum()


def reused(x, y):
    """Each result is an argument of the two calls that follow.

    The number of paths to the first call is a Fibonacci number.
    """
    before, last = x, y
    for step in range(40):
        before, last = last, call(after("w1", step % 2), torch.add, before * 0.5, last * 0.5)
    return last.sum()


def recurrent(x, y):
    """The state of a step reaches the next step here and through another worker."""
    state = x
    for step in range(6):
        state = torch.tanh(state + layer("w0", call(after("w1", step % 2), layer, after("w1", step % 2), state * y)))
    return state.sum()


def bounded(x, y):
    """Hooks see the whole gradient, which then takes two paths."""
    shared = x * y
    shared.register_hook(lambda gradient: gradient.clamp(-0.4, 0.4))
    weight = WEIGHTS["w0"] * 1
    weight.register_hook(lambda gradient: gradient.clamp(-0.7, 0.7))
    back = call("w1", layer, "w1", shared)
    return (call("w2", layer, "w2", back @ weight + shared @ weight) + shared).sum()


def split(me, x):
    return list((x @ WEIGHTS[me]).unbind()), {"text": "of no gradient", "whole": torch.ones(2)}


def partly_used(x, y):
    """The result uses some of the tensors in an answer, and one of several calls."""
    rows, others = call("w1", split, "w1", x)
    call("w2", relay, "w2", y, 2)
    return (rows[1] * others["whole"].sum()).sum() + (y * y).sum()


def reference(x, y):
    """A value moves between other workers without passing through this one."""
    if IS_LOCAL:
        return layer("w2", layer("w1", x) * layer("w0", y)).sum()
    kept = rpc.remote("w1", layer, args=("w1", x))
    return rpc.remote("w2", of_reference, args=("w2", kept, layer("w0", y))).to_here().sum()


def of_reference(me, kept, other):
    return layer(me, kept.to_here() * other)


@rpc.functions.async_execution
def passed_on(me, x):
    return rpc.rpc_async("w2", layer, args=("w2", layer(me, x))).then(lambda done: layer(me, done.wait()))


def asynchronous(x, y):
    """Functions that return a future run in the context of the call."""
    if IS_LOCAL:
        return (layer("w1", layer("w2", layer("w1", x))) * (y * 2)).sum()
    first = rpc.rpc_async("w1", passed_on, args=("w1", x))
    other = rpc.rpc_async("w1", torch.mul, args=(y, 2))
    return (first.wait() * other.wait()).sum()


def called_back(x, y):
    """Callbacks also run in the context of the call."""
    if IS_LOCAL:
        return (x * layer("w2", y * 2)).sum()
    other = rpc.rpc_async("w1", torch.mul, args=(y, 2)).then(
        lambda done: rpc.rpc_sync("w2", layer, args=("w2", done.wait()))
    )
    return (x * other.wait()).sum()


MODELS = [nested, reused, recurrent, bounded, partly_used, reference, asynchronous, called_back]
# With torch, a call whose result is not used makes the pass wait without end, and callbacks have no
# context.
NOT_OF_TORCH = [partly_used, called_back]


# Gradients
# --------------------------------------------------------------------------------------------------


def shown(gradient):
    return None if gradient is None else [round(one, 4) for one in gradient.flatten().tolist()]


def here(context_id, name):
    gradients = dist_autograd.get_gradients(context_id)
    return shown(gradients.get(WEIGHTS[name]))


def of_model(model):
    x, y = inputs()
    if IS_LOCAL:
        found = torch.autograd.grad(model(x, y), [x, y, *WEIGHTS.values()], allow_unused=True)
        return [shown(gradient) for gradient in found]
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [model(x, y)])
        gradients = dist_autograd.get_gradients(context_id)
        assert x.grad is None and y.grad is None
        # This call makes a worker participate that had no part in the context.
        weights = [call(name, here, context_id, name) for name in NAMES]
        return [shown(gradients.get(x)), shown(gradients.get(y)), *weights]


def trained():
    """Returns the weights after five steps of an optimizer."""
    x, y = inputs()
    if IS_LOCAL:
        optimizer = optim.Adagrad(WEIGHTS.values(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            nested(x, y).backward()
            optimizer.step()
        return [shown(weight) for weight in WEIGHTS.values()]
    weights = [rpc.remote(name, own_weight, args=(name,)) for name in NAMES]
    optimizer = DistributedOptimizer(optim.Adagrad, weights, lr=0.05)
    for _ in range(5):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [nested(x, y)])
            optimizer.step(context_id)
    return [shown(weight.to_here()) for weight in weights]


def own_weight(name):
    return WEIGHTS[name]


def together(model, threads=8):
    """Computes gradients in many threads and contexts at the same time."""
    found = [None] * threads

    def one(at):
        found[at] = of_model(model)

    running = [threading.Thread(target=one, args=(at,)) for at in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert all(one == found[0] for one in found), found
    return found[0]


def results():
    models = [model for model in MODELS if model not in NOT_OF_TORCH or sys.argv[1] != "TENSORPIPE"]
    found = {model.__name__: of_model(model) for model in models}
    found["together"] = of_model(recurrent) if IS_LOCAL else together(recurrent)
    found["trained"] = trained()
    return found


def work(rank, backend, folder):
    torch.set_num_threads(1)
    backend = rpc.BackendType[backend]
    options = rpc.backend_registry.construct_rpc_backend_options(backend, init_method=f"file://{folder}/store")
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=3, backend=backend, rpc_backend_options=options)
    if rank == 0:
        print(json.dumps(results()), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    if IS_LOCAL:
        print(json.dumps(results()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.start_processes(work, (sys.argv[1], folder), nprocs=3, start_method="fork")
